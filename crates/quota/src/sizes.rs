//! Size of an array in bytes, computed from the formats in `cuda.h`.

/// Shape of an array, from either version of the interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

const LAYERED: u32 = 0x01;
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

/// What a format's size refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Texels {
    /// Bits per channel of a texel.
    Channels(u64),
    /// Bits per texel, all channels together.
    Whole(u64),
    /// Bytes per block of 4 x 4 texels.
    Blocks(u64),
}

impl Shape {
    /// Returns the size in bytes of an array with this many mipmap levels. In a layered array, each level
    /// contains all layers. The size of sparse and deferred arrays is 0, because their memory is charged
    /// when it is created and mapped.
    pub(crate) fn bytes(&self, levels: u32) -> u64 {
        if self.flags & (SPARSE | DEFERRED) != 0 {
            return 0;
        }
        let longest = if self.flags & LAYERED != 0 {
            self.width.max(self.height)
        } else {
            self.width.max(self.height).max(self.depth)
        };
        let most = longest.max(1).ilog2().saturating_add(1);
        (0..levels.clamp(1, most)).fold(0, |sum: u64, level| sum.saturating_add(self.level(level)))
    }

    fn level(&self, level: u32) -> u64 {
        let half = |extent: u64| extent.checked_shr(level).unwrap_or(0).max(1);
        let depth = if self.flags & LAYERED != 0 { self.depth.max(1) } else { half(self.depth) };
        let (width, height) = (half(self.width), half(self.height));
        let texels = |width: u64, height: u64| width.saturating_mul(height).saturating_mul(depth);
        let bits = |each: u64| texels(width, height).saturating_mul(each).div_ceil(8);
        match texel(self.format) {
            Texels::Channels(each) => bits(each.saturating_mul(u64::from(self.channels))),
            Texels::Whole(each) => bits(each),
            Texels::Blocks(each) => texels(width.div_ceil(4), height.div_ceil(4)).saturating_mul(each),
        }
    }
}

#[expect(clippy::match_same_arms, reason = "one arm for each family of formats")]
/// Returns the size of a `CUarray_format`. Unknown formats count as 32 bits per channel.
fn texel(format: u32) -> Texels {
    match format {
        // Integers and floats of 8 and 16 bits. The default case below covers 32 bits.
        0x01 | 0x08 => Texels::Channels(8),
        0x02 | 0x09 | 0x10 => Texels::Channels(16),
        // UNORM and SNORM of 8 and 16 bits, with 1, 2 and 4 channels.
        0xc0 | 0xc6 => Texels::Whole(8),
        0xc1 | 0xc7 | 0xc3 | 0xc9 => Texels::Whole(16),
        0xc2 | 0xc8 | 0xc4 | 0xca => Texels::Whole(32),
        0xc5 | 0xcb => Texels::Whole(64),
        // Packed formats UNORM_INT_101010_2, AYUV, Y410 and UINT8_PACKED_444
        0x50 | 0xa8 | 0xa9 | 0x52 => Texels::Whole(32),
        // Packed format Y416
        0xb1 => Texels::Whole(64),
        // YUV 4:2:0 of 8 bits: NV12, semiplanar, planar
        0xb0 | 0x53 | 0x59 => Texels::Whole(12),
        // YUV 4:2:0 of 10 and 16 bits: P010, P016, semiplanar, planar
        0x9f | 0xa1 | 0x54 | 0x5a => Texels::Whole(24),
        // YUV 4:2:2 of 8 bits: NV16, YUY2, packed, semiplanar, planar
        0xa2 | 0xa5 | 0x51 | 0x55 | 0x5b => Texels::Whole(16),
        // YUV 4:2:2 of 10 and 16 bits: P210, P216, Y210, Y216, semiplanar, planar
        0xa3 | 0xa4 | 0xa6 | 0xa7 | 0x56 | 0x5c => Texels::Whole(32),
        // YUV 4:4:4 of 8 bits: Y444_PLANAR8, semiplanar, planar
        0xb2 | 0x57 | 0x5d => Texels::Whole(24),
        // YUV 4:4:4 of 10 and 16 bits: Y444_PLANAR10, semiplanar, planar
        0xb3 | 0x58 | 0x5e => Texels::Whole(48),
        // Block compression BC1 and BC4
        0x91 | 0x92 | 0x97 | 0x98 => Texels::Blocks(8),
        // Block compression BC2, BC3, BC5, BC6H and BC7
        0x93..=0x96 | 0x99..=0x9e => Texels::Blocks(16),
        _ => Texels::Channels(32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: [u64; 3], format: u32, channels: u32, flags: u32) -> Shape {
        let [width, height, depth] = size;
        Shape { width, height, depth, format, channels, flags }
    }

    #[test]
    fn array_sizes_match_formats_and_levels() {
        for (size, format, channels, flags, levels, expected) in [
            ([1024, 0, 0], 0x20, 1, 0, 1, 4096),
            ([1024, 1024, 0], 0x20, 4, 0, 1, 16 << 20),
            ([64, 64, 64], 0x01, 2, 0, 1, 524_288),
            ([64, 64, 6], 0x10, 4, LAYERED, 1, 196_608),
            ([64, 0, 10], 0x09, 1, LAYERED, 1, 1280),
            ([1920, 1080, 0], 0xb0, 3, 0, 1, 3_110_400),
            ([1920, 1080, 0], 0x9f, 3, 0, 1, 6_220_800),
            ([64, 64, 0], 0x91, 4, 0, 1, 2048),
            ([64, 64, 0], 0x9d, 4, 0, 1, 4096),
            ([65, 1, 0], 0x97, 1, 0, 1, 136),
            ([64, 64, 0], 0xc5, 4, 0, 1, 32_768),
            ([64, 64, 0], 0x7777, 2, 0, 1, 32_768),
            ([64, 64, 0], 0x20, 1, SPARSE, 1, 0),
            ([64, 64, 0], 0x20, 1, DEFERRED | LAYERED, 1, 0),
            // The levels have 64, 16, 4 and 1 texels. In a layered array, each level contains all layers.
            ([8, 8, 0], 0x01, 1, 0, 4, 85),
            ([8, 8, 0], 0x01, 1, 0, 99, 85),
            ([8, 8, 0], 0x01, 1, 0, 0, 64),
            ([8, 8, 3], 0x01, 1, LAYERED, 4, 255),
            ([8, 8, 8], 0x01, 1, 0, 4, 585),
            ([8, 0, 0], 0x01, 1, 0, 4, 15),
            ([u64::MAX, u64::MAX, 0], 0x20, 4, 0, 9, u64::MAX),
        ] {
            let shape = shape(size, format, channels, flags);
            assert_eq!(shape.bytes(levels), expected, "{shape:?} {levels}");
        }
    }
}
