//! `tenure events groups reset`: moves the offsets of a group and prints the changes.

use serde_json::json;
use tenure::port::{GroupKey, OffsetChange};

use super::group;
use crate::args::events::ResetArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, counted, paint};
use crate::store;

pub(super) async fn run(global: &GlobalArgs, args: ResetArgs) -> Result<u8, CliError> {
    let key = args.which.key(global)?;
    tenure::rules::event::validate_start_offset(&args.to)
        .map_err(|error| CliError::usage(error.to_string()))?;
    let store = store::open(global).await?;
    group(store.as_ref(), &key).await?;
    let moved = store.reset_group(&key, args.to, args.partition, args.dry_run).await?;
    match global.output {
        OutputFormat::Json => {
            output::print_json(&json!({"group": key, "dry_run": args.dry_run, "partitions": moved}));
        }
        OutputFormat::Table => output::print_text(&render(&key, &moved, args.dry_run)),
    }
    Ok(0)
}

/// Table of the partitions that move, and the number of those that do not.
fn render(key: &GroupKey, moved: &[OffsetChange], dry_run: bool) -> String {
    let (moving, staying): (Vec<&OffsetChange>, Vec<&OffsetChange>) =
        moved.iter().partition(|it| it.from_offset != it.to_offset);
    let mut text = String::new();
    if !moving.is_empty() {
        let mut table =
            Table::new(&["partition", "before", "after", ""]).right(&["partition", "before", "after"]);
        for it in &moving {
            let (word, style) = match it.to_offset < it.from_offset {
                true => ("reads again", TextStyle::Yellow),
                false => ("skips", TextStyle::Red),
            };
            table.row(vec![
                (it.partition.to_string(), TextStyle::Bold),
                (it.from_offset.to_string(), TextStyle::Plain),
                (it.to_offset.to_string(), TextStyle::Plain),
                (word.to_owned(), style),
            ]);
        }
        text = table.render();
    }
    let stay = match (moving.len(), staying.len()) {
        (_, 0) => String::new(),
        (0, _) => "no offset changes".to_owned(),
        (_, 1) => "1 partition is unchanged".to_owned(),
        (_, count) => format!("{count} partitions are unchanged"),
    };
    let done = match (moving.len(), dry_run) {
        (0, _) => String::new(),
        (count, true) => format!("{} of {key} would move", counted(count, "partition")),
        (count, false) => format!("{} of {key} moved", counted(count, "partition")),
    };
    let parts: Vec<_> = [done, stay].into_iter().filter(|part| !part.is_empty()).collect();
    let nothing = if dry_run { "; nothing was changed (--dry-run)" } else { "" };
    text + &paint(&format!("{}{nothing}", parts.join(", ")), TextStyle::Dim) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_shows_the_offsets_before_and_after() {
        let key: GroupKey = serde_json::from_str(
            r#"{"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}"#,
        )
        .expect("a group");
        let change = |partition, from_offset, to_offset| OffsetChange { partition, from_offset, to_offset };
        let moved = [change(0, 40, 0), change(1, 7, 7), change(2, 3, 90)];
        let wanted = "\
PARTITION  BEFORE  AFTER
        0      40      0  reads again
        2       3     90  skips
2 partitions of orders/mailer would move, 1 partition is unchanged; nothing was changed (--dry-run)
";
        assert_eq!(render(&key, &moved, true), wanted);
        assert_eq!(render(&key, &moved[1..2], false), "no offset changes\n");
        assert!(render(&key, &moved[2..], false).ends_with("1 partition of orders/mailer moved\n"));
    }
}
