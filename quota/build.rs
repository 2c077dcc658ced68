//! Links the library so that what it calls of its own is its own, whatever the program it is in defines.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbailiff_quota.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
