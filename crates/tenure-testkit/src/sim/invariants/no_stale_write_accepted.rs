//! Once a grant has written to a fenced resource, no earlier grant's write is accepted.

use super::super::node::Work;
use super::super::world::{Checked, World};

const NAME: &str = "no_stale_write_accepted";

pub(in super::super) fn check(world: &mut World, work: &Work) -> Checked {
    let of_work = |grant: &super::super::resource::Grant| {
        grant.place == work.place && grant.token == work.token && grant.session == work.session
    };
    let Some(number) = world.grants.iter().rposition(of_work) else {
        return super::broken(NAME, format!("a write under {}, which was never granted", work.token));
    };
    let newest = &mut world.newest_writer[work.place.index()];
    if number < *newest {
        let by = &world.grants[*newest];
        return super::broken(
            NAME,
            format!("a write under {} came after one under {}", work.token, by.token),
        );
    }
    *newest = number;
    Ok(())
}
