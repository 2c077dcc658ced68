//! Enums whose variants are label values. The documentation is generated from them.

/// Declares an enum whose variants are label values. The documentation shows each variant's doc comment.
#[macro_export]
macro_rules! label_values {
    ($(#[$about:meta])* pub enum $set:ident { $($(#[doc = $line:literal])+ $word:ident = $name:literal,)+ }) => {
        $(#[$about])*
        pub enum $set { $($(#[doc = $line])+ $word,)+ }

        impl $set {
            /// All variants, in the order of the page.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$word),+];

            /// Returns the label value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$word => $name,)+ }
            }

            /// Returns the meaning in one line.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$word => concat!($($line),+).trim_ascii(),)+ }
            }
        }
    };
}
