//! The slot of a key: the same in every store, for ever.

/// The slot of a key in a topic with so many slots: 32-bit FNV-1a over its bytes, both halves folded, modulo the slots. Simple
/// enough to be said in SQL (`tenure.slot_of`, the view `tenure_publish`), so that every language agrees.
///
/// ```
/// use tenure_core::event::slot_of;
///
/// assert_eq!(slot_of("", 64), (0x811c_9dc5u32 ^ 0x811c) % 64);
/// assert_eq!(slot_of("order-1", 64), slot_of("order-1", 64));
/// assert!(slot_of("kunde-ß", 7) < 7);
/// ```
pub fn slot_of(key: &str, slots: u32) -> u32 {
    let hash =
        key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) % slots.max(1)
}

#[cfg(test)]
mod tests {
    use super::slot_of;

    #[test]
    fn slots_of_known_keys_never_change() {
        let found: Vec<_> = ["", "a", "order-1", "order-2", "ada@example.org", "ключ"]
            .iter()
            .map(|key| slot_of(key, 64))
            .collect();
        assert_eq!(found, [25, 32, 18, 11, 56, 37]);
    }

    #[test]
    fn keys_that_people_use_spread_evenly() {
        for shape in ["order-{}", "user:{}", "{}00", "a/{}/b"] {
            let mut counts = [0u32; 64];
            for n in 0..64_000 {
                counts[slot_of(&shape.replace("{}", &n.to_string()), 64) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (700..1_300).contains(count)), "{shape}: {counts:?}");
        }
    }
}
