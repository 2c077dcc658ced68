//! Fixed sets of words, which are label values, and words in the stream, to which newer versions may add words.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A closed set of words.
pub trait Label: Copy + PartialEq + 'static {
    /// All words, in the order of the page.
    const WORDS: &'static [Self];

    /// Returns the word.
    fn word(self) -> &'static str;

    /// Returns the member with this word.
    fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().copied().find(|known| known.word() == word)
    }
}

/// Declares an enum whose variants are label values, also in JSON. The documentation shows each variant's doc
/// comment. `(default X)` implements [`Default`] with variant `X`.
#[macro_export]
macro_rules! label_values {
    (
        $(#[$about:meta])*
        pub enum $set:ident $((default $default:ident))? {
            $($(#[doc = $line:literal])+ $word:ident = $name:literal,)+
        }
    ) => {
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize,
        )]
        $(#[$about])*
        pub enum $set { $($(#[doc = $line])+ #[serde(rename = $name)] $word,)+ }

        impl $set {
            /// All variants, in the order of the page.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$word),+];

            /// The label values of all variants.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Returns the label value.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$word => $name,)+ }
            }

            /// Returns the meaning in one line.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$word => concat!($($line),+).trim_ascii(),)+ }
            }
        }

        $(impl Default for $set {
            fn default() -> Self {
                Self::$default
            }
        })?

        impl $crate::Label for $set {
            const WORDS: &'static [Self] = &Self::ALL;

            fn word(self) -> &'static str {
                self.name()
            }
        }
    };
}

/// A word in the stream: a member of a set that this version knows, or an unknown word, which is kept unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word<T> {
    /// A member of the set.
    Known(T),
    /// A word that this version does not know.
    Other(Box<str>),
}

impl<T: Label> Word<T> {
    /// Returns the member of the set; `None` if this version does not know the word.
    pub fn known(&self) -> Option<T> {
        if let Self::Known(member) = self { Some(*member) } else { None }
    }
}

impl<T: Default> Default for Word<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl<T: Label> Deref for Word<T> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Known(member) => member.word(),
            Self::Other(word) => word,
        }
    }
}

impl<T: Label> fmt::Display for Word<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self)
    }
}

impl<T: Label> From<T> for Word<T> {
    fn from(member: T) -> Self {
        Self::Known(member)
    }
}

impl<T: Label> From<&str> for Word<T> {
    fn from(word: &str) -> Self {
        T::of_word(word).map_or_else(|| Self::Other(word.into()), Self::Known)
    }
}

impl<T: Label> PartialEq<T> for Word<T> {
    fn eq(&self, other: &T) -> bool {
        self.known() == Some(*other)
    }
}

impl<T: Label> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self)
    }
}

impl<'de, T: Label> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(word: D) -> Result<Self, D::Error> {
        String::deserialize(word).map(|word| word.as_str().into())
    }
}
