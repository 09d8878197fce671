//! The partition of a key, identical in every store and version.

/// The partition of a key in a topic with this many partitions: 32-bit FNV-1a over its bytes, both halves folded,
/// modulo the number of partitions. SQL implements the same function (`tenure.partition_for_key`, the view
/// `tenure_publish`), so that publishers in every language agree.
///
/// ```
/// use tenure_core::rules::event::partition_for_key;
///
/// assert_eq!(partition_for_key("", 64), (0x811c_9dc5u32 ^ 0x811c) % 64);
/// assert_eq!(partition_for_key("order-1", 64), partition_for_key("order-1", 64));
/// assert!(partition_for_key("kunde-ß", 7) < 7);
/// ```
pub fn partition_for_key(key: &str, partitions: u32) -> u32 {
    let hash =
        key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) % partitions.max(1)
}

#[cfg(test)]
mod tests {
    use super::partition_for_key;

    #[test]
    fn partitions_of_known_keys_never_change() {
        let found: Vec<_> = ["", "a", "order-1", "order-2", "ada@example.org", "ключ"]
            .iter()
            .map(|key| partition_for_key(key, 64))
            .collect();
        assert_eq!(found, [25, 32, 18, 11, 56, 37]);
    }

    #[test]
    fn typical_keys_are_distributed_evenly() {
        for shape in ["order-{}", "user:{}", "{}00", "a/{}/b"] {
            let mut counts = [0u32; 64];
            for n in 0..64_000 {
                counts[partition_for_key(&shape.replace("{}", &n.to_string()), 64) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (700..1_300).contains(count)), "{shape}: {counts:?}");
        }
    }
}
