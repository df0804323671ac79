//! Values that clients keep, and bring again when they are lost.

use std::time::Duration;

use bytes::Bytes;
use treadle_scheduler::{Event, State};
use treadle_types::{ClientId, Failure, ObjectId, Report, TaskId, WorkerId};

use crate::cluster::*;

const D: ClientId = ClientId(1);

fn put(cluster: &mut Cluster, client: ClientId, task: TaskId) {
    cluster.event(Event::Put {
        client,
        task,
        nbytes: 5_000,
        inline: None,
        class: Bytes::new(),
        holders: Vec::new(),
        kept: true,
    });
}

fn object(cluster: &Cluster, task: TaskId) -> ObjectId {
    cluster.scheduler.task(task).expect("it is known").object()
}

/// What a client brought has come to a worker.
fn stored(cluster: &mut Cluster, worker: u32, object: ObjectId) {
    let node = cluster.nodes.get_mut(&WorkerId(worker)).expect("it");
    node.store.insert(object);
    let nbytes = 5_000;
    cluster.report(worker, Report::Stored { object, nbytes });
}

fn unkept(cluster: &mut Cluster, client: ClientId, task: TaskId) {
    let tasks = vec![task];
    cluster.event(Event::Unkept { client, tasks });
}

/// A value at worker 1 that both clients keep and nobody wants, and a reader of it for worker 0.
fn kept(cluster: &mut Cluster) -> (TaskId, TaskId) {
    cluster.event(Event::ClientJoined(D));
    let task = cluster.scheduler.allocate();
    for client in [C, D] {
        put(cluster, client, task);
    }
    let brought = object(cluster, task);
    stored(cluster, 1, brought);
    let reader = cluster.one(reads(&[task]).on(&[0]).or_others());
    cluster.size(reader, 5_000);
    for client in [C, D] {
        let tasks = vec![task];
        cluster.event(Event::Unwant { client, tasks });
    }
    (task, reader)
}

#[test]
fn a_value_that_is_lost_is_brought_again_under_another_name() {
    let mut cluster = Cluster::new(2, 1);
    let (task, reader) = kept(&mut cluster);
    let before = object(&cluster, task);
    cluster.lose(1);
    assert_eq!(cluster.asked, [(C, task)]);
    assert_eq!(cluster.state(task), State::Waiting);
    assert_ne!(cluster.state(reader), State::Failed);
    // A copy of before comes too late.
    stored(&mut cluster, 0, before);
    assert_eq!(cluster.state(task), State::Waiting);
    put(&mut cluster, C, task);
    let again = object(&cluster, task);
    assert_ne!(again, before);
    stored(&mut cluster, 0, again);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    assert_eq!(cluster.asked.len(), 1);
    cluster.unwant(&[task, reader]);
    cluster.assert_empty();
    assert_eq!(cluster.unkept, [(C, task), (D, task)]);
}

#[test]
fn a_value_is_asked_for_when_something_needs_it() {
    let mut cluster = Cluster::new(3, 1);
    let (task, reader) = kept(&mut cluster);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    for holder in cluster.holders(task) {
        cluster.lose(holder.0);
        if cluster.state(reader) == State::Memory {
            assert!(cluster.asked.is_empty(), "nobody needs it");
        }
    }
    if cluster.state(reader) == State::Memory {
        let [holder] = cluster.holders(reader)[..] else {
            panic!("the reader's value is at one worker");
        };
        cluster.lose(holder.0);
    }
    assert_eq!(cluster.asked, [(C, task)]);
    // And no more, when nothing does.
    cluster.unwant(&[reader]);
    cluster.assert_empty();
}

#[test]
fn who_cannot_bring_it_leaves_it_to_the_next() {
    let leaves: [fn(TaskId) -> Event; 2] = [
        |task| Event::Unkept {
            client: C,
            tasks: vec![task],
        },
        |_| Event::ClientLeft(C),
    ];
    for event in leaves {
        let mut cluster = Cluster::new(2, 1);
        let (task, reader) = kept(&mut cluster);
        let tasks = vec![reader];
        cluster.event(Event::Want { client: D, tasks });
        cluster.lose(1);
        cluster.event(event(task));
        assert_eq!(cluster.asked, [(C, task), (D, task)]);
        assert_ne!(cluster.state(reader), State::Failed);
        unkept(&mut cluster, D, task);
        let failure = cluster.failure_for(D, reader);
        let lost = matches!(failure, Failure::DataLost { task: t, worker, .. }
            if *t == task && worker.0 != 0);
        assert!(lost, "{failure:?} does not say which worker had it");
    }
}

#[test]
fn another_client_is_asked_when_the_first_says_nothing() {
    let mut cluster = Cluster::new(2, 1);
    let (task, reader) = kept(&mut cluster);
    cluster.lose(1);
    cluster.tick_after(Duration::from_secs(29));
    assert_eq!(cluster.asked.len(), 1);
    cluster.tick_after(Duration::from_secs(2));
    assert_eq!(cluster.asked, [(C, task), (D, task)]);
    put(&mut cluster, D, task);
    // The first wakes up, and is not disturbed by the second, which gives up.
    put(&mut cluster, C, task);
    unkept(&mut cluster, D, task);
    let again = object(&cluster, task);
    stored(&mut cluster, 0, again);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
}

#[test]
fn what_was_cancelled_is_not_asked_for() {
    let mut cluster = Cluster::new(2, 1);
    let (task, reader) = kept(&mut cluster);
    let tasks = vec![task];
    cluster.event(Event::Want { client: D, tasks });
    let tasks = vec![task];
    cluster.event(Event::Cancel {
        client: D,
        tasks,
        force: false,
    });
    assert_eq!(cluster.unkept, [(D, task)]);
    cluster.lose(1);
    assert_eq!(cluster.asked, [(C, task)]);
    unkept(&mut cluster, C, task);
    assert_eq!(cluster.state(reader), State::Failed);
}

#[test]
fn an_answer_that_crosses_with_the_end_of_its_need_is_taken() {
    let mut cluster = Cluster::new(2, 1);
    let (task, reader) = kept(&mut cluster);
    let last = cluster.one(reads(&[reader]));
    cluster.size(last, 5_000);
    cluster.run();
    cluster.unwant(&[reader]);
    for holder in cluster.holders(last) {
        cluster.lose(holder.0);
    }
    for holder in cluster.holders(task) {
        cluster.lose(holder.0);
    }
    assert_eq!(cluster.asked, [(C, task)]);
    // Something that is in memory, and could need it again, is left.
    cluster.join(7, profile(7, 1));
    let tasks = vec![last];
    cluster.event(Event::Want { client: D, tasks });
    cluster.event(Event::Cancel {
        client: C,
        tasks: vec![last],
        force: true,
    });
    cluster.assert_empty();
    assert_eq!(cluster.unkept, [(C, task), (D, task)]);
    // By now the key is another task's.
    let again = cluster.scheduler.allocate();
    put(&mut cluster, C, again);
    let brought = object(&cluster, again);
    stored(&mut cluster, 7, brought);
    assert_eq!(cluster.state(again), State::Memory);
    cluster.unwant(&[again]);
    cluster.assert_empty();
    assert_eq!(cluster.unkept.last(), Some(&(C, again)));
}
