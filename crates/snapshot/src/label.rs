//! Sets of words that become values of labels. Documentation lists what it finds here, so no word is without its line.

/// Declares an enum whose variants are label values. The doc comment of a variant appears in the documentation.
#[macro_export]
macro_rules! label_values {
    ($(#[$about:meta])* pub enum $set:ident { $($(#[doc = $line:literal])+ $word:ident = $name:literal,)+ }) => {
        $(#[$about])*
        pub enum $set { $($(#[doc = $line])+ $word,)+ }

        impl $set {
            /// All of them, in the order of a page.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$word),+];

            /// Its label value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$word => $name,)+ }
            }

            /// What it means, in one line.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$word => concat!($($line),+).trim_ascii(),)+ }
            }
        }
    };
}
