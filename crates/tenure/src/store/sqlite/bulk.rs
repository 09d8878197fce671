//! Statements with many rows.
//!
//! Every statement costs a round trip to the thread of the connection. A list as one JSON parameter also needs one round trip, but
//! SQLite parses it again for every column. Large inserts therefore bind `VALUES` with many rows.

/// The row counts of prepared statements. A list is split greedily into these sizes, so that each statement is prepared once.
const ROWS: [usize; 6] = [1_000, 250, 60, 15, 4, 1];

/// Split rows into slices of the sizes in `ROWS`.
pub(super) fn portions<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let most = ROWS.into_iter().find(|most| *most <= rest.len())?;
        let (portion, others) = rest.split_at(most);
        rest = others;
        Some(portion)
    })
}

/// Extend the statement for one row to `rows` rows by repeating its `VALUES` group.
pub(super) fn repeated(one: &str, rows: usize) -> String {
    let values = one.find("VALUES (").map(|at| at + "VALUES ".len());
    let group = values.and_then(|from| Some((from, from + one[from..].find(')')? + 1)));
    let Some((from, to)) = group else { return one.to_owned() };
    let more = format!(", {}", &one[from..to]).repeat(rows.saturating_sub(1));
    format!("{}{more}{}", &one[..to], &one[to..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_contain_all_rows_in_order() {
        for n in [0_usize, 1, 3, 4, 59, 1_000, 2_345] {
            let rows: Vec<usize> = (0..n).collect();
            let portions: Vec<&[usize]> = portions(&rows).collect();
            assert_eq!(portions.concat(), rows);
            assert!(portions.iter().all(|portion| ROWS.contains(&portion.len())), "{n}");
        }
    }

    #[test]
    fn values_are_repeated_at_any_position() {
        assert_eq!(repeated("INSERT INTO t VALUES (?, ?)", 1), "INSERT INTO t VALUES (?, ?)");
        assert_eq!(repeated("INSERT INTO t VALUES (?, ?)", 3), "INSERT INTO t VALUES (?, ?), (?, ?), (?, ?)");
        let join = "SELECT 1 FROM (VALUES (?)) v JOIN t ON f(t.a) = v.column1";
        assert_eq!(repeated(join, 2), "SELECT 1 FROM (VALUES (?), (?)) v JOIN t ON f(t.a) = v.column1");
    }
}
