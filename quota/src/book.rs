//! The book: what is allocated where, so that what is freed can be given back. Many small locks, so that threads seldom
//! meet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::abi::{Address, Device, Handle};
use crate::latch::{Latch, Turn};
use crate::region::words;

/// What was allocated at an address, or as an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) bytes: u64,
    pub(crate) device: Device,
    pub(crate) owner: Owner,
}

/// What memory ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Context(Handle),
    /// Memory of a pool outlives contexts.
    Pool,
}

/// There is no memory to write it down in.
#[derive(Debug)]
pub(crate) struct Full;

type Page = HashMap<Address, Record, BuildHasherDefault<Mix>>;

const PAGES: usize = 64;

/// All that is allocated.
pub(crate) struct Book {
    pages: [Latch<Page>; PAGES],
}

/// A hash of addresses. Those of a driver end in nine or more zeros, and are nobody's to choose.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

fn mix(number: u64) -> u64 {
    // However many zeros a number ends in, the upper half of the product has none of them.
    let product = u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let [low, high] = words(product.to_le_bytes());
    low ^ high
}

impl Book {
    pub(crate) const fn new() -> Self {
        Self { pages: [const { Latch::new(HashMap::with_hasher(BuildHasherDefault::new())) }; PAGES] }
    }

    fn page(&self, address: Address) -> Option<Turn<'_, Page>> {
        let page = usize::try_from(mix(address) >> 58).ok()?;
        Some(self.pages.get(page)?.lock())
    }

    /// Writes down what was allocated, and gives what stood there: it was freed by a way that is not seen.
    pub(crate) fn put(&self, address: Address, record: Record) -> Result<Option<Record>, Full> {
        let mut page = self.page(address).ok_or(Full)?;
        page.try_reserve(1).map_err(|_| Full)?;
        Ok(page.insert(address, record))
    }

    /// Writes down again what was struck out, unless something else stands there by now; false where it does.
    pub(crate) fn put_back(&self, address: Address, record: Record) -> bool {
        let Some(mut page) = self.page(address) else { return true };
        if page.try_reserve(1).is_err() {
            return true;
        }
        match page.entry(address) {
            Entry::Vacant(place) => {
                place.insert(record);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Strikes out.
    pub(crate) fn take(&self, address: Address) -> Option<Record> {
        self.page(address)?.remove(&address)
    }

    /// Strikes out all of a kind.
    pub(crate) fn take_all(&self, which: impl Fn(&Record) -> bool) -> Vec<(Address, Record)> {
        let mut found = Vec::new();
        for page in &self.pages {
            let mut page = page.lock();
            // What cannot be listed stays, and stays charged.
            if found.try_reserve(page.len()).is_ok() {
                found.extend(page.extract_if(|_, record| which(record)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Record = Record { bytes: 1, device: 0, owner: Owner::Context(7) };
    const SECOND: Record = Record { bytes: 2, device: 1, owner: Owner::Pool };

    #[test]
    fn what_is_struck_out_is_what_was_written() {
        let book = Book::new();
        assert_eq!(book.take(512), None);
        assert_eq!(book.put(512, FIRST).unwrap(), None);
        assert_eq!(book.put(512, SECOND).unwrap(), Some(FIRST), "an address that is given out again");
        assert!(!book.put_back(512, FIRST));
        assert_eq!(book.take(512), Some(SECOND));
        assert!(book.put_back(512, FIRST));
        assert_eq!(book.take(512), Some(FIRST));
        assert_eq!(book.take(512), None);
    }

    #[test]
    fn what_ends_with_a_context_is_found() {
        let book = Book::new();
        for address in (1..=1000).map(|block| block << 21) {
            book.put(address, if address % 3 == 0 { FIRST } else { SECOND }).unwrap();
        }
        let taken = book.take_all(|record| record.owner == Owner::Context(7));
        assert_eq!(taken.len(), 333);
        assert!(taken.iter().all(|(address, record)| address % 3 == 0 && *record == FIRST));
        assert_eq!(book.take_all(|_| true).len(), 667);
    }

    #[test]
    fn addresses_that_end_in_zeros_are_spread() {
        for shift in [0, 9, 12, 16, 21, 25, 35] {
            let mut pages = [0; PAGES];
            let mut ends = [0; 128];
            for block in 0..12_800u64 {
                let hash = mix(0x7f00_0000_0000 + (block << shift));
                pages[usize::try_from(hash >> 58).unwrap()] += 1;
                ends[usize::try_from(hash % 128).unwrap()] += 1;
            }
            assert!(pages.iter().all(|count| *count < 400), "{shift}: {pages:?}");
            assert!(ends.iter().all(|count| *count < 200), "{shift}: {ends:?}");
        }
    }
}
