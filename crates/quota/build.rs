//! Makes the library use its own definitions, even if the host program defines the same symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbailiff_quota.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
