//! The slot of a key in a cluster, and for each slot the hash tag that leads to it.
//!
//! The tags are fixed for ever, since they are part of key names that several clients must agree on: for each
//! of the 16,384 slots the first text that hashes to it, among all texts of the characters `0` to `9` and `a`
//! to `z`, shorter ones first, those of one length in ASCII order. None is longer than four characters.

use std::sync::OnceLock;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;
const CHARACTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// The longest tag: three characters reach 16,299 slots, four reach all.
const LONGEST: usize = 4;

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key where it has none, modulo 16,384.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(0, hashed_part(key)) % SLOTS
}

/// The slot of a key, and the tag that leads to it.
pub(crate) fn tag_of(key: &[u8]) -> (u16, &'static str) {
    let slot = slot_of(key);
    (slot, tag_of_slot(slot))
}

/// The tag that leads to a slot.
pub(crate) fn tag_of_slot(slot: u16) -> &'static str {
    &table()[usize::from(slot % SLOTS)]
}

/// What a cluster hashes: the text between the first `{` and the next `}`, if there is any, else the whole key.
fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let inside = &key[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        Some(length) if length > 0 => &inside[..length],
        _ => key,
    }
}

fn table() -> &'static [Box<str>] {
    static TABLE: OnceLock<Vec<Box<str>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![Box::<str>::default(); usize::from(SLOTS)];
        let mut missing = table.len();
        let mut shorter = vec![(String::new(), 0_u16)];
        for _ in 0..LONGEST {
            let mut longer = Vec::with_capacity(shorter.len() * CHARACTERS.len());
            for (text, crc) in &shorter {
                for &character in CHARACTERS {
                    let crc = crc16(*crc, &[character]);
                    let text = format!("{text}{}", char::from(character));
                    let tag = &mut table[usize::from(crc % SLOTS)];
                    if tag.is_empty() {
                        *tag = text.as_str().into();
                        missing -= 1;
                        if missing == 0 {
                            return table;
                        }
                    }
                    longer.push((text, crc));
                }
            }
            shorter = longer;
        }
        table
    })
}

fn crc16(start: u16, bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    bytes.iter().fold(start, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(0, b"123456789"), 0x31C3);
        for (key, slot) in [("foo", 12_182), ("{foo}:1", 12_182), ("a{foo}b{c}", 12_182), ("bar", 5_061)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn trap_40_braces_that_enclose_nothing_hash_the_whole_key() {
        for key in ["foo{}{bar}", "x{y", "x}y", "}{", "{}", ""] {
            assert_eq!(hashed_part(key.as_bytes()), key.as_bytes());
        }
        assert_eq!(hashed_part(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hashed_part(b"foo{bar}{zap}"), b"bar");
    }

    #[test]
    fn every_slot_has_a_tag_that_leads_to_it() {
        for (slot, tag) in table().iter().enumerate() {
            assert!((1..=LONGEST).contains(&tag.len()), "slot {slot}");
            assert_eq!(usize::from(slot_of(format!("lock:~queue:{{{tag}}}:x").as_bytes())), slot);
        }
    }

    #[test]
    fn tags_never_change() {
        for (slot, tag) in [(0, "1bz"), (1, "emj"), (12_182, "foo"), (16_383, "hia"), (3_766, "24d")] {
            assert_eq!(&*table()[slot], tag);
        }
        assert_eq!(tag_of(b"lock:order:1001"), (3_766, "24d"));
    }
}
