//! Disks that do nothing, and say nothing either.

use std::collections::BTreeSet;

use treadle_shuffle::{Config, Group, Plan, Refusal, ServerEffect, ServerEvent, ToNode};

use crate::server::{fetch, refused, seal, spilled};
use crate::support::{Head, Holder, answer, batch, server_id, spec, transfer};

/// A server with a run, complete; with or without another copy.
fn written(has_other: bool) -> (Holder, std::sync::Arc<Plan>) {
    let mut plan = Plan::clone(&Head::new(1, spec(3, 4)).plan());
    if has_other {
        let group = Group::clone(&plan.groups[0]);
        plan.groups[0] = Group {
            copies: vec![server_id(0), server_id(1)],
            ..group
        };
    }
    let plan = std::sync::Arc::new(plan);
    let mut holder = Holder::new(0, Config::default());
    holder.told(ToNode::Plan(plan.clone()));
    let group = plan.groups[0].id;
    let (first, _) = batch(transfer(0, 10), group, 0, &[(1, 1)]);
    holder.event(ServerEvent::Budget {
        target: first.length / 2,
        limit: 9 * first.length,
    });
    holder.push(batch(transfer(0, 10), group, 0, &[(1, 1)]));
    assert_eq!(spilled(&holder.effects), Some((0, 1)));
    (holder, plan)
}

fn stuck(runs: &[u64]) -> ServerEvent {
    ServerEvent::Stuck(runs.iter().copied().collect::<BTreeSet<_>>())
}

#[test]
fn what_is_written_to_a_disk_that_does_nothing_is_not_waited_for() {
    let (mut holder, plan) = written(false);
    let group = plan.groups[0].id;
    holder.push(batch(transfer(1, 20), group, 0, &[(1, 1)]));
    assert_eq!(spilled(&holder.effects), Some((0, 1)), "one at a time");
    holder.effects.clear();
    let effects = holder.event(stuck(&[0]));
    // All of it goes elsewhere.
    assert_eq!(effects[0], ServerEffect::DropRun(0));
    assert_eq!(spilled(&effects), Some((1, 2)));
    let written = |run| ServerEvent::Spilled {
        run,
        written: Ok(()),
    };
    let effects = holder.event(written(1));
    let dropped = effects.iter();
    let dropped = dropped.filter(|effect| matches!(effect, ServerEffect::Drop { .. }));
    assert_eq!((dropped.count(), holder.server.resident()), (2, 0));
    // It goes on after all. Nobody wants that run any more.
    assert_eq!(holder.event(stuck(&[])), []);
    assert_eq!(holder.event(written(0)), []);
}

#[test]
fn disks_that_do_nothing_take_a_few_runs_and_no_more() {
    let (mut holder, plan) = written(false);
    let group = plan.groups[0].id;
    let mut begun = Vec::new();
    for attempt in 0..8 {
        holder.effects.clear();
        holder.push(batch(transfer(1, 20 + attempt), group, 0, &[(1, 1)]));
        holder.event(stuck(&(0..20).collect::<Vec<_>>()));
        begun.extend(spilled(&holder.effects));
    }
    let runs: Vec<u64> = begun.iter().map(|(run, _)| *run).collect();
    assert_eq!(runs, [1, 2, 3, 4]);
}

#[test]
fn a_read_of_a_disk_that_does_nothing_goes_to_the_other_copy_if_there_is_one() {
    for has_other in [true, false] {
        let (mut holder, plan) = written(has_other);
        holder.event(ServerEvent::Spilled {
            run: 0,
            written: Ok(()),
        });
        seal(&mut holder, &plan, &[(transfer(0, 10), 1)]);
        let effects = holder.message(fetch(&plan, 1));
        assert!(matches!(effects[..], [ServerEffect::Load { load: 0, .. }]));
        let effects = holder.event(stuck(&[0]));
        let given_up = refused(answer(&effects));
        assert_eq!(
            given_up,
            has_other.then_some(Refusal::Damaged),
            "{effects:?}"
        );
        let effects = holder.message(fetch(&plan, 1));
        assert_eq!(
            refused(answer(&effects)).is_some(),
            has_other,
            "{effects:?}"
        );
        let reports = effects
            .iter()
            .filter(|effect| matches!(effect, ServerEffect::Report { .. }));
        assert_eq!(reports.count(), 0, "nothing is lost");
        holder.event(stuck(&[]));
        if has_other {
            let effects = holder.message(fetch(&plan, 1));
            assert!(
                matches!(effects[..], [ServerEffect::Load { .. }]),
                "{effects:?}"
            );
        }
    }
}
