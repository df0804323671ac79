//! Clients: what they want, what they send, and that they leave.

use bytes::Bytes;
use treadle_scheduler::{Event, Notice, SchedulerError, State};
use treadle_types::{ClientId, Failure, TaskId, WorkerId};

use crate::cluster::*;

const D: ClientId = ClientId(1);

fn want(cluster: &mut Cluster, client: ClientId, task: TaskId) {
    let tasks = vec![task];
    cluster.event(Event::Want { client, tasks });
}

#[test]
fn a_value_goes_with_its_last_future() {
    let mut cluster = Cluster::new(1, 1);
    cluster.event(Event::ClientJoined(D));
    let task = cluster.one(reads(&[]));
    cluster.size(task, 5_000);
    want(&mut cluster, D, task);
    cluster.run();
    cluster.unwant(&[task]);
    assert_eq!(cluster.state(task), State::Memory);
    cluster.event(Event::ClientLeft(D));
    cluster.assert_empty();
    assert!(cluster.forgotten.contains(&task));
}

#[test]
fn who_wants_what_is_done_hears_it_at_once() {
    let mut cluster = Cluster::new(1, 1);
    cluster.event(Event::ClientJoined(D));
    let task = cluster.one(reads(&[]));
    cluster.run();
    want(&mut cluster, D, task);
    let heard = &cluster.notices[&(D, task)];
    let inline = Some(Bytes::from_static(b"value"));
    assert!(matches!(&heard[..], [Notice::Finished { inline: i, .. }] if *i == inline));
}

#[test]
fn intermediate_values_go_as_soon_as_they_are_read() {
    let mut cluster = Cluster::new(1, 1);
    let chain = cluster.chain(4);
    for &task in &chain {
        cluster.size(task, 1_000_000);
    }
    let mut peak = 0;
    while cluster.state(chain[3]) != State::Memory {
        cluster.start_all();
        let running = cluster.nodes[&WorkerId(0)].running[0].object.task;
        cluster.end(running);
        cluster.deliver();
        peak = peak.max(cluster.scheduler.worker(WorkerId(0)).expect("it").bytes());
    }
    assert_eq!(peak, 1_000_000);
}

#[test]
fn a_client_that_leaves_takes_its_tasks_along() {
    let mut cluster = Cluster::new(2, 2);
    cluster.submit(vec![reads(&[]); 100]);
    cluster.chain(100);
    cluster.start_all();
    cluster.event(Event::ClientLeft(C));
    assert_eq!(cluster.scheduler.tasks().count(), 0);
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_value_waits_for_readers_that_are_still_to_come() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let mut first = batch(C, 1, false, &ids[..1], vec![reads(&[])], &[]);
    first.readers = vec![1];
    cluster.event(Event::Submit(first));
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Memory);
    let second = batch(C, 1, true, &ids[1..], vec![reads(&ids[..1])], &ids[1..]);
    cluster.event(Event::Submit(second));
    cluster.run();
    assert_eq!(cluster.state(ids[1]), State::Memory);
    assert_eq!(cluster.state(ids[0]), State::Forgotten);
    assert_eq!(cluster.assigned(ids[0]).len(), 1);
}

#[test]
fn a_client_leaves_in_the_middle_of_a_submission() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let mut first = batch(C, 1, false, &ids, vec![reads(&[]), reads(&[])], &[]);
    first.readers = vec![1, 3];
    cluster.event(Event::Submit(first));
    cluster.start_all();
    cluster.event(Event::ClientLeft(C));
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn a_submission_that_ends_early_gives_its_readers_up() {
    let mut cluster = Cluster::new(1, 1);
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let mut first = batch(C, 1, false, &ids[..1], vec![reads(&[])], &[]);
    first.readers = vec![5];
    cluster.event(Event::Submit(first));
    let second = batch(C, 1, true, &ids[1..], vec![reads(&ids[..1])], &ids[1..]);
    cluster.event(Event::Submit(second));
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Forgotten);
}

#[test]
fn tasks_that_exist_give_their_reads_back() {
    let mut cluster = Cluster::new(1, 1);
    cluster.event(Event::ClientJoined(D));
    let ids: Vec<_> = (0..2).map(|_| cluster.scheduler.allocate()).collect();
    let specs = || vec![reads(&[]), reads(&ids[..1])];
    cluster.submit_as(C, &ids, specs(), &ids[1..]);
    cluster.size(ids[0], 5_000);
    cluster.size(ids[1], 5_000);
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Released);
    // Another client sends the same, in two batches.
    let mut first = batch(D, 1, false, &ids[..1], vec![reads(&[])], &[]);
    first.readers = vec![1];
    cluster.event(Event::Submit(first));
    assert_eq!(
        cluster.state(ids[0]),
        State::Assigned,
        "its reader may be new"
    );
    let second = batch(D, 1, true, &ids[1..], vec![reads(&ids[..1])], &ids[1..]);
    cluster.event(Event::Submit(second));
    assert_eq!(cluster.state(ids[0]), State::Released, "it was not");
    let heard = cluster.notices[&(D, ids[1])].last();
    assert!(matches!(heard, Some(Notice::Finished { .. })));
    cluster.run();
    cluster.event(Event::ClientLeft(C));
    cluster.event(Event::ClientLeft(D));
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn two_submissions_wait_for_readers_of_one_task() {
    let mut cluster = Cluster::new(1, 1);
    cluster.event(Event::ClientJoined(D));
    let shared = cluster.scheduler.allocate();
    for client in [C, D] {
        let mut first = batch(client, 1, false, &[shared], vec![reads(&[])], &[]);
        first.readers = vec![1];
        cluster.event(Event::Submit(first));
    }
    cluster.run();
    cluster.event(Event::ClientLeft(C));
    assert_eq!(cluster.state(shared), State::Memory);
    let reader = cluster.scheduler.allocate();
    let second = batch(D, 1, true, &[reader], vec![reads(&[shared])], &[reader]);
    cluster.event(Event::Submit(second));
    cluster.run();
    assert_eq!(cluster.assigned(shared).len(), 1);
    assert_eq!(cluster.state(reader), State::Memory);
}

#[test]
fn values_of_clients_are_values() {
    let mut cluster = Cluster::new(2, 1);
    let put = |task, inline, holders| Event::Put {
        client: C,
        task,
        nbytes: 5_000,
        inline,
        class: Bytes::from_static(b"array"),
        holders,
        kept: false,
    };
    let small = cluster.scheduler.allocate();
    cluster.event(put(small, Some(Bytes::from_static(b"small")), vec![]));
    let large = cluster.scheduler.allocate();
    cluster.event(put(large, None, vec![WorkerId(1)]));
    let object = cluster.scheduler.task(large).expect("it").object();
    let node = cluster.nodes.get_mut(&WorkerId(1)).expect("it");
    node.store.insert(object);
    let reader = cluster.one(reads(&[small, large]));
    assert_eq!(cluster.worker_of(reader), WorkerId(1));
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    cluster.unwant(&[small, large, reader]);
    cluster.assert_empty();
}

#[test]
fn a_value_of_a_client_is_lost_with_its_last_worker() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.scheduler.allocate();
    cluster.event(Event::Put {
        client: C,
        task,
        nbytes: 5_000,
        inline: None,
        class: Bytes::new(),
        holders: vec![WorkerId(0)],
        kept: false,
    });
    let reader = cluster.one(reads(&[task]).on(&[5]));
    cluster.lose(0);
    for id in [task, reader] {
        let failure = cluster.failure(id);
        assert!(matches!(failure, Failure::DataLost { task: t, .. } if *t == task));
    }
}

/// A value that clients are to bring, with a reader that both want.
fn coming(cluster: &mut Cluster, bringers: &[ClientId]) -> (TaskId, TaskId) {
    cluster.event(Event::ClientJoined(D));
    let task = cluster.scheduler.allocate();
    let mut names = Vec::new();
    for &client in bringers {
        cluster.event(Event::Put {
            client,
            task,
            nbytes: 5_000,
            inline: None,
            class: Bytes::new(),
            holders: Vec::new(),
            kept: false,
        });
        names.push(cluster.scheduler.task(task).expect("it").object());
    }
    names.dedup();
    assert_eq!(names.len(), 1, "what one client brings is not the other's");
    let reader = cluster.one(reads(&[task]));
    for id in [task, reader] {
        want(cluster, C, id);
        want(cluster, D, id);
    }
    (task, reader)
}

#[test]
fn readers_of_a_value_fail_when_nobody_brings_it_any_more() {
    let gives_up: [fn(TaskId) -> Event; 3] = [
        |task| Event::Cancel {
            client: C,
            tasks: vec![task],
            force: false,
        },
        |task| Event::Unwant {
            client: C,
            tasks: vec![task],
        },
        |_| Event::ClientLeft(C),
    ];
    for event in gives_up {
        let mut cluster = Cluster::new(2, 1);
        let (task, reader) = coming(&mut cluster, &[C]);
        cluster.event(event(task));
        for id in [task, reader] {
            assert_eq!(cluster.failure_for(D, id).culprit(), task);
        }
    }
}

#[test]
fn a_value_that_one_of_two_clients_brings_is_there() {
    let mut cluster = Cluster::new(2, 1);
    let (task, reader) = coming(&mut cluster, &[C, D]);
    cluster.event(Event::ClientLeft(C));
    let object = cluster.scheduler.task(task).expect("it").object();
    let node = cluster.nodes.get_mut(&WorkerId(1)).expect("it");
    node.store.insert(object);
    let nbytes = 5_000;
    cluster.report(1, treadle_types::Report::Stored { object, nbytes });
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    cluster.event(Event::ClientLeft(D));
    cluster.assert_empty();
}

#[test]
fn a_value_of_a_client_stays_as_long_as_something_could_be_computed_from_it() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.scheduler.allocate();
    cluster.event(Event::Put {
        client: C,
        task,
        nbytes: 5_000,
        inline: None,
        class: Bytes::new(),
        holders: vec![WorkerId(0)],
        kept: false,
    });
    let object = cluster.scheduler.task(task).expect("it").object();
    let node = cluster.nodes.get_mut(&WorkerId(0)).expect("it");
    node.store.insert(object);
    let reader = cluster.one(reads(&[task]).on(&[1]).or_others());
    cluster.size(reader, 5_000);
    cluster.run();
    cluster.unwant(&[task]);
    cluster.lose(1);
    cluster.run();
    assert_eq!(cluster.state(reader), State::Memory);
    cluster.unwant(&[reader]);
    cluster.assert_empty();
}

#[test]
fn unsound_events_are_refused_as_a_whole() {
    let mut cluster = Cluster::new(1, 1);
    let stranger = ClientId(9);
    let unknown = TaskId(77);
    let error = cluster.try_event(Event::ClientLeft(stranger));
    assert_eq!(error, Err(SchedulerError::UnknownClient(stranger)));
    let error = cluster.try_event(Event::ClientJoined(C));
    assert_eq!(error, Err(SchedulerError::ClientId(C)));
    let error = cluster.try_event(Event::Want {
        client: C,
        tasks: vec![unknown],
    });
    assert_eq!(error, Err(SchedulerError::UnknownTask(unknown)));

    let ids: Vec<_> = (0..3).map(|_| cluster.scheduler.allocate()).collect();
    let sound = batch(C, 0, true, &ids, vec![reads(&[]); 3], &ids);
    let mut broken = Vec::new();
    for field in 0..6 {
        let mut batch = sound.clone();
        match field {
            0 => batch.readers.push(1),
            1 => batch.offsets = vec![0, 2, 1, 0],
            2 => batch.options = vec![0, 1, 99],
            3 => batch.option_sets[1].constraint = 2,
            4 => batch.tasks[1] = unknown,
            _ => batch.wanted.push(unknown),
        }
        broken.push(batch);
    }
    let mut cyclic = batch(C, 0, true, &ids, vec![reads(&[]); 3], &ids);
    cyclic.inputs = vec![ids[2], ids[0], ids[1]];
    cyclic.offsets = vec![0, 1, 2, 3];
    broken.push(cyclic);
    for batch in broken {
        assert!(cluster.try_event(Event::Submit(batch)).is_err());
        assert_eq!(cluster.scheduler.tasks().count(), 0);
    }
    let mut backwards = sound.clone();
    backwards.inputs = vec![ids[2]];
    backwards.offsets = vec![0, 1, 1, 1];
    cluster.event(Event::Submit(backwards));
    cluster.run();
    assert_eq!(cluster.state(ids[0]), State::Memory);
}

#[test]
fn an_id_that_was_not_used_is_given_back() {
    let mut cluster = Cluster::new(1, 1);
    let id = cluster.scheduler.allocate();
    cluster.scheduler.abandon(id);
    assert_eq!(cluster.scheduler.allocate(), id);
}

#[test]
fn the_story_of_a_task_is_told() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]));
    cluster.run();
    let story = cluster.scheduler.story(task);
    let states: Vec<_> = story.iter().map(|step| step.state).collect();
    assert_eq!(
        states,
        [State::Waiting, State::Ready, State::Assigned, State::Memory]
    );
    assert_eq!(story[2].worker, Some(WorkerId(0)));
    assert!(story[2].cause < story[3].cause);
}
