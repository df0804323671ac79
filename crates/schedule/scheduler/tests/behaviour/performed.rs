//! Tasks with effects: what they did can be lost while their small value is not, and they run again.

use bytes::Bytes;
use treadle_scheduler::{Event, Notice, State};
use treadle_types::{Cause, Command, TaskId, WorkerId};

use crate::cluster::*;

/// The sending half of a shuffle: two sources of much data, a transfer of each, and a barrier that
/// reads the transfers, and alone is wanted.
struct Shuffle {
    sources: Vec<TaskId>,
    transfers: Vec<TaskId>,
    barrier: TaskId,
}

impl Shuffle {
    /// Runs it: the transfers on workers 0 and 1, the rest on worker 2.
    fn run(cluster: &mut Cluster) -> Self {
        let ids: Vec<_> = (0..5).map(|_| cluster.scheduler.allocate()).collect();
        let specs = vec![
            reads(&[]).on(&[2]),
            reads(&[]).on(&[2]),
            reads(&ids[..1]).with_effects().on(&[0]).or_others(),
            reads(&ids[1..2]).with_effects().on(&[1]).or_others(),
            reads(&ids[2..4]).with_effects().on(&[2]).or_others(),
        ];
        cluster.submit_as(C, &ids, specs, &ids[4..]);
        cluster.size(ids[0], 5_000);
        cluster.size(ids[1], 5_000);
        cluster.run();
        Self {
            sources: ids[..2].to_vec(),
            transfers: ids[2..4].to_vec(),
            barrier: ids[4],
        }
    }

    /// How often the sources, the transfers and the barrier ran.
    fn runs(&self, cluster: &Cluster) -> [Vec<usize>; 3] {
        [&self.sources, &self.transfers, &vec![self.barrier]].map(|tasks| {
            let runs = tasks.iter().map(|&task| cluster.assigned(task).len());
            runs.collect()
        })
    }
}

fn lose_as_told(cluster: &mut Cluster, worker: u32) {
    let worker = WorkerId(worker);
    cluster.nodes.remove(&worker);
    let cause = Cause::Drained;
    cluster.event(Event::WorkerLost { worker, cause });
}

#[test]
fn recipe_and_inputs_stay_beside_a_small_value() {
    let mut cluster = Cluster::new(3, 1);
    let shuffle = Shuffle::run(&mut cluster);
    let barrier = cluster.scheduler.task(shuffle.barrier).expect("wanted");
    assert_eq!(barrier.inline(), Some(Bytes::from_static(b"value")));
    assert_eq!(barrier.recipe(), Bytes::from_static(b"recipe"));
    assert_eq!(barrier.inputs().collect::<Vec<_>>(), shuffle.transfers);
    // What the transfers have read is not needed any more; its recipe could be.
    assert_eq!(cluster.state(shuffle.transfers[0]), State::Memory);
    assert_eq!(cluster.state(shuffle.sources[0]), State::Released);
    cluster.unwant(&[shuffle.barrier]);
    cluster.assert_empty();
}

/// A shuffle, and one who reads it and returns much: it runs on worker 1.
fn read(cluster: &mut Cluster) -> (Shuffle, TaskId) {
    let shuffle = Shuffle::run(cluster);
    let output = cluster.one(reads(&[shuffle.barrier]).on(&[1]).or_others());
    cluster.size(output, 5_000);
    cluster.unwant(&[shuffle.barrier]);
    (shuffle, output)
}

#[test]
fn what_was_done_is_let_go_when_it_was_read() {
    let mut cluster = Cluster::new(3, 1);
    let (shuffle, output) = read(&mut cluster);
    assert_eq!(cluster.let_go, []);
    cluster.run();
    // The output could be computed again, and still nobody needs what it has read.
    assert_eq!(cluster.state(output), State::Memory);
    let all = [shuffle.barrier, shuffle.transfers[1], shuffle.transfers[0]];
    assert_eq!(cluster.let_go, all);
    assert_eq!(cluster.state(shuffle.barrier), State::Released);
    cluster.lose(1);
    cluster.run();
    assert_eq!(cluster.state(output), State::Memory);
    assert_eq!(shuffle.runs(&cluster), [vec![2, 2], vec![2, 2], vec![2]]);
    assert_eq!(cluster.let_go, [all, all].concat());
    cluster.unwant(&[output]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn what_led_to_it_stays_as_long_as_it_is_read() {
    let mut cluster = Cluster::new(3, 1);
    let (shuffle, output) = read(&mut cluster);
    cluster.event(Event::Invalidate(vec![shuffle.barrier]));
    cluster.run();
    assert_eq!(cluster.state(output), State::Memory);
    // The transfers had not to run again.
    assert_eq!(shuffle.runs(&cluster), [vec![1, 1], vec![1, 1], vec![2]]);
}

#[test]
fn what_was_read_and_is_gone_lets_go_of_what_led_to_it() {
    let mut cluster = Cluster::new(3, 1);
    let shuffle = Shuffle::run(&mut cluster);
    // Who will read it cannot run yet, and is not needed any more.
    let reader = cluster.one(reads(&[shuffle.barrier]).on(&[9]));
    let last = cluster.one(reads(&[reader]));
    cluster.unwant(&[shuffle.barrier]);
    cluster.unwant(&[reader]);
    cluster.event(Event::Cancel {
        client: C,
        tasks: vec![last],
        force: true,
    });
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_plane_can_say_that_effects_are_gone() {
    for turned in [false, true] {
        let mut cluster = Cluster::new(3, 1);
        let shuffle = Shuffle::run(&mut cluster);
        let mut gone = vec![shuffle.transfers[0], shuffle.barrier];
        if turned {
            gone.reverse();
        }
        cluster.event(Event::Invalidate(gone));
        assert_eq!(cluster.last_notice(shuffle.barrier), Some(&Notice::Pending));
        cluster.run();
        assert_eq!(cluster.state(shuffle.barrier), State::Memory);
        // The value has not taken the recipe's place for good.
        let other = |command: &Command| match command {
            Command::Assign(assignment) => assignment.recipe != "recipe",
            _ => false,
        };
        assert_eq!(cluster.count(other), 0);
        // What the other transfer did is still there.
        assert_eq!(shuffle.runs(&cluster), [vec![2, 1], vec![2, 1], vec![2]]);
        cluster.unwant(&[shuffle.barrier]);
        cluster.run();
        cluster.assert_empty();
    }
}

#[test]
fn small_values_of_other_tasks_cannot_be_gone() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.run();
    cluster.event(Event::Invalidate(vec![task]));
    cluster.run();
    assert_eq!(cluster.state(task), State::Memory);
    assert_eq!(cluster.assigned(task).len(), 1);
}

#[test]
fn effects_go_with_the_worker_that_ran_the_task() {
    for lose in [Cluster::lose, lose_as_told] {
        let mut cluster = Cluster::new(2, 1);
        let task = cluster.one(reads(&[]).with_effects().on(&[0]).or_others());
        cluster.run();
        lose(&mut cluster, 0);
        assert_eq!(cluster.last_notice(task), Some(&Notice::Pending));
        // Who reads it waits for the second run, and is told what that returned.
        let reader = cluster.one(reads(&[task]).on(&[7]).or_others());
        assert_eq!(cluster.state(reader), State::Waiting);
        cluster.run();
        assert_eq!(cluster.assigned(task), [WorkerId(0), WorkerId(1)]);
        assert_eq!(cluster.state(reader), State::Memory);
        let object = cluster.scheduler.task(task).expect("wanted").object();
        let reads_it = |command: &Command| {
            matches!(command, Command::Assign(assignment)
                if assignment.inputs.iter().any(|input| input.object == object))
        };
        assert_eq!(cluster.count(reads_it), 1);
    }
}

#[test]
fn effects_that_are_elsewhere_stay_until_somebody_says_that_they_are_gone() {
    for lose in [Cluster::lose, lose_as_told] {
        let mut cluster = Cluster::new(3, 1);
        let task = cluster.one(reads(&[]).with_lasting_effects().on(&[0]).or_others());
        let reader = cluster.one(reads(&[task]).with_lasting_effects().on(&[1]).or_others());
        cluster.run();
        lose(&mut cluster, 0);
        lose(&mut cluster, 1);
        cluster.run();
        assert_eq!(cluster.assigned(task), [WorkerId(0)]);
        assert_eq!(cluster.assigned(reader), [WorkerId(1)]);
        cluster.event(Event::Invalidate(vec![task, reader]));
        cluster.run();
        assert_eq!(cluster.assigned(task), [WorkerId(0), WorkerId(2)]);
        assert_eq!(cluster.assigned(reader), [WorkerId(1), WorkerId(2)]);
        assert_eq!(cluster.state(reader), State::Memory);
        cluster.unwant(&[task, reader]);
        cluster.run();
        cluster.assert_empty();
    }
}

#[test]
fn a_reader_that_has_not_run_has_them_again() {
    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![
        reads(&[]).with_effects().on(&[0]).or_others(),
        reads(&ids[..1]).on(&[9]),
    ];
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Ready);
    cluster.lose(0);
    assert_eq!(cluster.state(ids[1]), State::Waiting);
    cluster.run();
    assert_eq!(cluster.assigned(ids[0]), [WorkerId(0), WorkerId(1)]);
    cluster.join(9, profile(9, 1));
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Memory);
    // The reader could have to run again.
    assert_eq!(cluster.state(ids[0]), State::Released);
    cluster.unwant(&ids[1..]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn who_has_not_ended_begins_anew() {
    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..4).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![
        reads(&[]).with_effects().on(&[0]).or_others(),
        reads(&ids[..1]).on(&[1]),
        reads(&ids[..1]).on(&[1]),
        reads(&ids[2..3]).on(&[1]),
    ];
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    cluster.start_all();
    cluster.end(ids[0]);
    cluster.deliver();
    cluster.start_all();
    // One runs, one is queued behind it, and the last one was sent ahead.
    for reader in &ids[1..] {
        assert_eq!(cluster.state(*reader), State::Assigned);
    }
    cluster.lose(0);
    assert_eq!(cluster.count(|c| matches!(c, Command::Cancel(_))), 3);
    cluster.run();
    for reader in &ids[1..] {
        assert_eq!(cluster.state(*reader), State::Memory);
    }
    assert_eq!(cluster.assigned(ids[0]), [WorkerId(0), WorkerId(1)]);
}

#[test]
fn who_has_not_ended_fails_if_it_cannot_begin_anew() {
    let mut cluster = Cluster::new(3, 1);
    let data = cluster.scheduler.allocate();
    cluster.event(Event::Put {
        client: C,
        task: data,
        nbytes: 5_000,
        inline: None,
        class: Bytes::new(),
        holders: vec![WorkerId(0)],
        kept: false,
    });
    let object = cluster.scheduler.task(data).expect("wanted").object();
    let holder = cluster.nodes.get_mut(&WorkerId(0)).expect("there");
    holder.store.insert(object);
    let task = cluster.one(reads(&[]).with_effects().on(&[1]));
    cluster.run();
    let reader = cluster.one(reads(&[data, task]).on(&[2]));
    cluster.start_all();
    // It has fetched the data, and the scheduler has not heard.
    cluster.lose(0);
    assert_eq!(cluster.state(data), State::Failed);
    assert_eq!(cluster.state(reader), State::Assigned);
    cluster.lose(1);
    assert_eq!(cluster.state(reader), State::Failed);
}

#[test]
fn what_nobody_needs_does_not_run_again() {
    let mut cluster = Cluster::new(3, 1);
    let shuffle = Shuffle::run(&mut cluster);
    cluster.lose(0);
    cluster.lose(1);
    cluster.run();
    // The barrier has read the transfers, and they are wanted by nobody.
    assert_eq!(shuffle.runs(&cluster), [vec![1, 1], vec![1, 1], vec![1]]);
    assert_eq!(cluster.state(shuffle.transfers[0]), State::Released);
    assert_eq!(cluster.state(shuffle.barrier), State::Memory);
    // Until the barrier has to run again.
    cluster.join(3, profile(2, 1));
    cluster.lose(2);
    cluster.run();
    assert_eq!(cluster.state(shuffle.barrier), State::Memory);
    assert_eq!(shuffle.runs(&cluster), [vec![2, 2], vec![2, 2], vec![2]]);
}

#[test]
fn a_large_value_that_nobody_needs_is_dropped_as_others_are() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]).with_effects(), reads(&ids[..1])];
    cluster.submit_as(C, &ids, specs, &ids[1..]);
    cluster.size(ids[0], 5_000);
    cluster.size(ids[1], 5_000);
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Released);
}

#[test]
fn copies_of_the_value_do_not_help() {
    let mut cluster = Cluster::new(3, 1);
    let task = cluster.one(reads(&[]).with_effects().on(&[0]));
    cluster.size(task, 5_000);
    cluster.run();
    let replicate = |copies| Event::Replicate {
        tasks: vec![task],
        copies,
        among: Vec::new(),
    };
    cluster.event(replicate(2));
    cluster.run();
    // A third one is on its way, and comes too late.
    cluster.event(replicate(3));
    cluster.lose(0);
    assert_eq!(cluster.last_notice(task), Some(&Notice::Pending));
    cluster.run();
    assert_eq!(cluster.state(task), State::Ready);
    cluster.join(3, profile(0, 1));
    cluster.run();
    assert_eq!(cluster.assigned(task), [WorkerId(0), WorkerId(3)]);
    assert_eq!(cluster.holders(task), [WorkerId(3)]);
    cluster.unwant(&[task]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_value_that_a_client_brings_has_none() {
    let mut cluster = Cluster::new(0, 0);
    let task = cluster.one(reads(&[]).with_effects());
    cluster.event(Event::Put {
        client: C,
        task,
        nbytes: 5,
        inline: Some(Bytes::from_static(b"value")),
        class: Bytes::new(),
        holders: Vec::new(),
        kept: false,
    });
    cluster.event(Event::Invalidate(vec![task]));
    assert_eq!(cluster.state(task), State::Memory);
}

#[test]
fn a_run_that_began_with_what_is_discarded_does_not_count() {
    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[]), reads(&ids[..1]), reads(&ids[1..2])];
    cluster.submit_as(C, &ids, specs, &[ids[0], ids[2]]);
    cluster.size(ids[0], 5_000);
    cluster.size(ids[1], 5_000);
    for &id in &ids[..2] {
        cluster.start_all();
        cluster.end(id);
        cluster.deliver();
    }
    cluster.start_all();
    assert_eq!(cluster.state(ids[2]), State::Assigned);
    cluster.event(Event::Discard {
        gone: Vec::new(),
        derived: ids[1..].to_vec(),
    });
    cluster.run();
    assert_eq!(cluster.state(ids[2]), State::Memory);
    let runs = [0, 1, 2].map(|index| cluster.assigned(ids[index]).len());
    assert_eq!(runs, [1, 2, 2]);
    // What the first run returned was told to nobody.
    let notices = &cluster.notices[&(C, ids[2])];
    let finished = notices
        .iter()
        .filter(|notice| matches!(notice, Notice::Finished { .. }));
    assert_eq!(finished.count(), 1);
}

#[test]
fn a_small_value_that_was_computed_from_what_is_discarded_is_made_anew() {
    let mut cluster = Cluster::new(2, 1);
    let ids: Vec<_> = (0..4).map(|_| cluster.scheduler.allocate()).collect();
    // The last one reads nothing of it.
    let specs = vec![
        reads(&[]).with_effects(),
        reads(&ids[..1]),
        reads(&ids[1..2]),
        reads(&[]),
    ];
    cluster.submit_as(C, &ids, specs, &[ids[2], ids[3]]);
    cluster.run();
    cluster.event(Event::Discard {
        gone: vec![ids[0]],
        derived: ids[1..3].to_vec(),
    });
    assert_eq!(cluster.last_notice(ids[2]), Some(&Notice::Pending));
    cluster.run();
    let runs = ids.iter().map(|&id| cluster.assigned(id).len());
    assert_eq!(runs.collect::<Vec<_>>(), [2, 2, 2, 1]);
    cluster.unwant(&[ids[2], ids[3]]);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn while_lineage_is_kept_small_values_have_theirs() {
    let mut cluster = Cluster::new(2, 1);
    let before = cluster.one(reads(&[]));
    cluster.run();
    cluster.scheduler.keep_lineage(true);
    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let specs = vec![reads(&[before]), reads(&ids[..1]), reads(&ids[..2])];
    cluster.submit_as(C, &ids, specs, &ids[2..]);
    cluster.run();
    let last = cluster.scheduler.task(ids[2]).expect("wanted");
    assert_eq!(last.inline(), Some(Bytes::from_static(b"value")));
    assert_eq!(last.recipe(), Bytes::from_static(b"recipe"));
    assert_eq!(last.inputs().collect::<Vec<_>>(), ids[..2]);
    // Nobody needs these values: they could be made anew, except for the one that came before.
    for &id in &ids[..2] {
        assert_eq!(cluster.state(id), State::Released);
    }
    cluster.unwant(&[before]);
    cluster.run();
    assert_eq!(cluster.state(before), State::Memory);
    let again = cluster.one(reads(&ids[1..2]));
    cluster.run();
    assert_eq!(cluster.state(again), State::Memory);
    let runs = ids.iter().map(|&id| cluster.assigned(id).len());
    assert_eq!(runs.collect::<Vec<_>>(), [2, 2, 1]);
    // What came is as it was, and what comes lets go of its inputs, unless it reads such a value.
    cluster.scheduler.keep_lineage(false);
    let after = cluster.one(reads(&[]));
    cluster.run();
    assert_eq!(
        cluster.scheduler.task(after).expect("wanted").recipe(),
        Bytes::new()
    );
    cluster.unwant(&[again, after, ids[2]]);
    cluster.run();
    cluster.assert_empty();
}
