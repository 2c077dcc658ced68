//! A gzip member (RFC 1952) of two parts: a long one that is compressed once, and a short tail that differs
//! between responses. The tail is stored uncompressed, so a response costs little.

use std::io::{self, Write};
use std::mem;

use bailiff_http::Bytes;
use flate2::{Compression, Crc, write::DeflateEncoder};

/// Gzip header: deflate, no flags, no time stamp, fastest compression, unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// Maximum length of a stored deflate block in bytes.
const STORED_MOST: usize = 0xffff;

/// Compresses what is written to it.
#[derive(Debug)]
pub struct Packer {
    encoder: DeflateEncoder<Vec<u8>>,
    crc: Crc,
}

/// The compressed long part, to which blocks can be appended.
#[derive(Debug)]
pub struct Packed {
    bytes: Bytes,
    crc: Crc,
}

impl Default for Packer {
    fn default() -> Self {
        Self { encoder: DeflateEncoder::new(HEADER.to_vec(), Compression::fast()), crc: Crc::new() }
    }
}

impl Packer {
    /// Ends the long part at a byte boundary, so that another block can follow.
    ///
    /// # Errors
    /// If the compression fails.
    pub fn finish(mut self) -> io::Result<Packed> {
        self.encoder.flush()?;
        let bytes = mem::take(self.encoder.get_mut());
        Ok(Packed { bytes: bytes.into(), crc: self.crc })
    }
}

impl Write for Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write_all(bytes)?;
        self.crc.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Packed {
    /// Returns the complete member in two pieces, with `tail` at its end.
    pub fn with_tail(&self, tail: &[u8]) -> [Bytes; 2] {
        let mut end = Vec::with_capacity(tail.len() + 16);
        store(tail, &mut end);
        let mut last = Crc::new();
        last.update(tail);
        let mut crc = Crc::new();
        crc.combine(&self.crc);
        crc.combine(&last);
        end.extend_from_slice(&crc.sum().to_le_bytes());
        end.extend_from_slice(&crc.amount().to_le_bytes());
        [self.bytes.clone(), end.into()]
    }
}

/// Appends `bytes` as stored blocks; the last block is marked as final (RFC 1951, 3.2.4).
fn store(bytes: &[u8], into: &mut Vec<u8>) {
    let mut rest = bytes;
    loop {
        let (block, after) = rest.split_at(rest.len().min(STORED_MOST));
        // The length is at most STORED_MOST, so two bytes are enough.
        let [low, high, ..] = block.len().to_le_bytes();
        into.extend_from_slice(&[u8::from(after.is_empty()), low, high, !low, !high]);
        into.extend_from_slice(block);
        if after.is_empty() {
            return;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn read_back(long: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut packer = Packer::default();
        packer.write_all(long).expect("memory takes everything");
        let packed = packer.finish().expect("memory takes everything");
        let member = packed.with_tail(tail).concat();
        let mut rest = member.as_slice();
        let mut text = Vec::new();
        GzDecoder::new(&mut rest).read_to_end(&mut text).expect("checksum and length agree");
        text
    }

    #[test]
    fn one_member_of_both_parts() {
        let long = b"bailiff_gpu_up{gpu=\"0\"} 1\n".repeat(10_000);
        for tail in [&b""[..], b"# EOF\n", &long[..STORED_MOST], &long] {
            assert_eq!(read_back(&long, tail), [&long, tail].concat());
        }
        assert_eq!(read_back(b"", b"x"), b"x");
    }
}
