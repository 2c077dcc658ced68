//! Files of the cgroup controller `dmem`: a line for each memory region, with its name and a number of bytes or
//! `max`. The name contains the PCI address of the device: `nvidia/00000000:02:00.0/vidmem`.

/// PCI address: domain, bus, device and function. Its text form varies.
pub type PciAddress = [u32; 4];

/// PCI address without the function.
pub type PciSlot = [u32; 3];

/// Parses a PCI address.
pub fn pci_address(text: &str) -> Option<PciAddress> {
    let (place, function) = text.split_once('.')?;
    let [domain, bus, device] = pci_slot(place)?;
    Some([domain, bus, device, hexadecimal(function)?])
}

/// Parses a PCI address without the function.
pub fn pci_slot(text: &str) -> Option<PciSlot> {
    let mut fields = text.split(':').map(hexadecimal);
    let slot = [fields.next()??, fields.next()??, fields.next()??];
    fields.next().is_none().then_some(slot)
}

fn hexadecimal(field: &str) -> Option<u32> {
    // `from_str_radix` accepts a sign.
    let is_hex = (1..=8).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(field, 16).ok()).flatten()
}

/// Bytes of each region of a PCI device; `u64::MAX` for no limit.
pub type Regions = Vec<(PciAddress, u64)>;

/// Parses a file, without regions that do not name a PCI device; `None` if a line is malformed.
pub fn regions(file: &str) -> Option<Regions> {
    let mut regions = Vec::new();
    for line in file.lines() {
        let (name, value) = line.rsplit_once(' ')?;
        let value = if value == "max" { u64::MAX } else { value.parse().ok()? };
        regions.extend(name.split('/').find_map(pci_address).map(|address| (address, value)));
    }
    Some(regions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_as_numbers() {
        for text in ["00000000:1b:00.0", "0000:1B:00.0", "0:1b:0.0"] {
            assert_eq!(pci_address(text), Some([0, 0x1b, 0, 0]), "{text}");
        }
        for text in ["", "vidmem", "1b:00.0", "0:0:1b:00.0", "0000:+1:00.0", "0000:1b:00", "123456789:0:0.0"]
        {
            assert_eq!(pci_address(text), None, "{text}");
        }
    }

    #[test]
    fn regions_of_pci_devices_are_read() {
        let file =
            "nvidia/00000000:02:00.0/vidmem 4294967296\ndrm/0001:03:00.1/vram0 max\ndrm/card0/stolen 7\n";
        assert_eq!(regions(file), Some(vec![([0, 2, 0, 0], 4 << 30), ([1, 3, 0, 1], u64::MAX)]));
        assert_eq!(regions(""), Some(vec![]));
        for file in
            ["nvidia/0000:02:00.0/vidmem\n", "a -1\n", "a 18446744073709551616\n", "a 1.5\n", "a NaN\n"]
        {
            assert_eq!(regions(file), None, "{file}");
        }
    }
}
