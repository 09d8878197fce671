//! Many rows in one statement.
//!
//! Every statement is a trip to the connection's thread. A list that goes in as JSON is one trip, too, but SQLite takes it apart
//! anew for every column; what is written by the thousand is bound instead, as `VALUES` with so many rows.

/// How many rows go into one statement: as many as there are of the first that is not more. Each is prepared once.
const ROWS: [usize; 6] = [1_000, 250, 60, 15, 4, 1];

/// These rows, in portions for which there is a statement.
pub(super) fn portions<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let most = ROWS.into_iter().find(|most| *most <= rest.len())?;
        let (portion, others) = rest.split_at(most);
        rest = others;
        Some(portion)
    })
}

/// A statement for so many rows, made of the one for a single row: its `VALUES (?, ?)` is repeated.
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
    fn portions_are_all_of_it_in_order() {
        for n in [0_usize, 1, 3, 4, 59, 1_000, 2_345] {
            let rows: Vec<usize> = (0..n).collect();
            let portions: Vec<&[usize]> = portions(&rows).collect();
            assert_eq!(portions.concat(), rows);
            assert!(portions.iter().all(|portion| ROWS.contains(&portion.len())), "{n}");
        }
    }

    #[test]
    fn values_are_repeated_wherever_they_stand() {
        assert_eq!(repeated("INSERT INTO t VALUES (?, ?)", 1), "INSERT INTO t VALUES (?, ?)");
        assert_eq!(repeated("INSERT INTO t VALUES (?, ?)", 3), "INSERT INTO t VALUES (?, ?), (?, ?), (?, ?)");
        let join = "SELECT 1 FROM (VALUES (?)) v JOIN t ON f(t.a) = v.column1";
        assert_eq!(repeated(join, 2), "SELECT 1 FROM (VALUES (?), (?)) v JOIN t ON f(t.a) = v.column1");
    }
}
