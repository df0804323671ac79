//! The master of the shuffle plane.

mod workers;

use std::collections::BTreeSet;

use treadle_messages::{FromClient, FromWorker, Registration, Role, ToWorker};
use treadle_shuffle::{Commit, CommitError, Generation, GroupId, Receipt, ToMaster};
use treadle_types::{Command, Report, Runs, Value};

use crate::support::{Client, Cluster, Task, task};
use workers::{
    Worker, assigned, commit, effects, registration, submit, submit_read_by, transfer, transfer_of,
};

#[test]
fn a_shuffle_is_planned_committed_and_ended_with_its_barrier() {
    let cluster = Cluster::new(0);
    let mut workers = ["a", "b"].map(|name| Worker::connect(&cluster, name));
    let mut client = cluster.client("c");
    submit(&mut client);
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    let shares = &receipts[0].shares;
    let servers: BTreeSet<u32> = shares.iter().map(|share| share.group.server.node).collect();
    assert_eq!(servers, workers.iter().map(|worker| worker.id).collect());
    commit(&mut workers, &receipts, 1);
    let list = client.query("shuffles", &[]);
    let Value::List(list) = list else {
        panic!("{list:?}");
    };
    let about = |name| list[0].get(name).cloned();
    assert_eq!(list.len(), 1);
    assert_eq!(about("name"), Some(Value::str("shuffle-1")));
    assert_eq!(about("transferred"), Some(Value::Int(2)));
    assert_eq!(about("outputs"), Some(Value::Int(8)));
    assert_eq!(about("complete"), Some(Value::Bool(true)));
    assert_eq!(about("rows"), Some(Value::Int(12)));
    let (index, object) = assigned(&mut workers, "out");
    workers[index].finish(object, false);
    // Nobody can read what was shuffled any more.
    let shuffle = receipts[0].transfer.shuffle;
    for worker in &mut workers {
        assert_eq!(worker.closed(), shuffle);
    }
    assert_eq!(client.value("out"), 5);
    assert_eq!(client.query("shuffles", &[]), Value::List(Vec::new()));
    // What a small value was made of stays, in case the rows turn out to be others.
    client.release(&["out"]);
    assert_eq!(client.query("shuffles", &[]), Value::List(Vec::new()));
    for worker in &mut workers {
        assert_eq!(worker.find("shuffle-1"), None);
    }
}

#[test]
fn a_cancelled_shuffle_ends() {
    let cluster = Cluster::new(0);
    let mut workers = [Worker::connect(&cluster, "a")];
    let mut client = cluster.client("c");
    submit(&mut client);
    let receipt = transfer(&mut workers, 0, 1);
    client.cancel(&["out"], false);
    assert_eq!(workers[0].closed(), receipt.transfer.shuffle);
}

#[test]
fn what_a_lost_worker_held_is_made_again_also_by_those_who_live() {
    let cluster = Cluster::new(0);
    let mut workers = Vec::from(["a", "b"].map(|name| Worker::connect(&cluster, name)));
    let mut client = cluster.client("c");
    submit(&mut client);
    let before = [0, 1].map(|map| transfer(&mut workers, map, 1));
    commit(&mut workers, &before, 1);
    let gone = workers.remove(1);
    gone.peer.close();
    drop(gone);
    // Whoever ran them: rows of both are gone.
    let mut receipts = [0, 1].map(|map| transfer(&mut workers, map, 2));
    // A group that compared keeps what it has, and says so to those who push it again.
    for (again, before) in receipts.iter_mut().zip(&before) {
        assert_eq!(again.shares[0].group, before.shares[0].group);
        again.shares[0].holder = before.shares[0].holder;
    }
    let groups: Vec<GroupId> = receipts[0].shares.iter().map(|share| share.group).collect();
    let epochs: Vec<u32> = groups.iter().map(|group| group.epoch.0).collect();
    assert_eq!(epochs, [1, 2]);
    let (_, object) = assigned(&mut workers, "barrier");
    let shuffle = receipts[0].transfer.shuffle;
    let commit = Commit::new(shuffle, 2, &receipts).unwrap();
    workers[0].tell_master(ToMaster::Commit { ask: 7, commit });
    workers[0].seal(shuffle);
    workers[0].seal(shuffle);
    assert_eq!(workers[0].committed(), Ok(Generation(2)));
    workers[0].finish(object, false);
    let (_, object) = assigned(&mut workers, "out");
    workers[0].finish(object, false);
    assert_eq!(client.value("out"), 5);
}

#[test]
fn a_map_that_is_not_deterministic_has_outputs_and_what_came_of_them_run_again_too() {
    let cluster = Cluster::new(0);
    let mut workers = [Worker::connect(&cluster, "a")];
    let mut client = cluster.client("c");
    let tasks = [
        effects(task("t0", 0, &[])),
        effects(task("t1", 0, &[])),
        effects(task("barrier", 0, &["t0", "t1"])),
        task("out", 0, &["barrier"]),
        task("further", 0, &["out"]),
        // It reads, and so the shuffle does not end.
        task("late", 0, &["barrier"]),
    ];
    let batch = client.batch(&tasks, &["out", "further", "late"], true);
    client.say(&FromClient::Register(registration(batch.number)));
    client.say(&FromClient::Submit(batch));
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    commit(&mut workers, &receipts, 1);
    for key in ["out", "further"] {
        let (_, object) = assigned(&mut workers, key);
        workers[0].finish(object, true);
        client.result(key);
    }
    let share = &receipts[0].shares[0];
    workers[0].tell_master(ToMaster::Differs {
        shuffle: receipts[0].transfer.shuffle,
        group: share.group,
        map: Some(0),
        is_late: false,
    });
    let again = [0, 1].map(|map| transfer(&mut workers, map, 2));
    assert_ne!(again[0].transfer.attempt, receipts[0].transfer.attempt);
    commit(&mut workers, &again, 2);
    for key in ["out", "further", "late"] {
        let (_, object) = assigned(&mut workers, key);
        workers[0].finish(object, false);
        assert_eq!(client.value(key), 5);
    }
    cluster.wait_for_log("all of it runs again");
}

#[test]
fn a_shuffle_that_cannot_be_ends_its_client_with_a_reason() {
    let cluster = Cluster::new(0);
    let mut client = cluster.client("c");
    client.say(&FromClient::Register(Registration {
        outputs: Runs::range(0, 11),
        ..registration(0)
    }));
    client.wait_for_end();
    cluster.wait_for_log("one of them is not among its partitions");
}

/// The transfers; the barrier and who reads it come later.
fn submit_transfers(client: &mut Client) {
    let tasks = [0, 1].map(|map| effects(task(format!("t{map}"), 0, &[])));
    let mut batch = client.batch(&tasks, &[], false);
    batch.readers = vec![1, 1];
    client.say(&FromClient::Register(registration(batch.number)));
    client.say(&FromClient::Submit(batch));
}

fn submit_rest(client: &mut Client) {
    let tasks = [
        effects(task("barrier", 0, &["t0", "t1"])),
        task("out", 0, &["barrier"]),
    ];
    let mut batch = client.batch(&tasks, &["out"], true);
    batch.ranks = vec![2, 3];
    client.say(&FromClient::Submit(batch));
}

#[test]
fn transfers_that_run_before_their_barrier_has_come_count() {
    let cluster = Cluster::new(0);
    let mut workers = ["a", "b"].map(|name| Worker::connect(&cluster, name));
    let mut client = cluster.client("c");
    submit_transfers(&mut client);
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    submit_rest(&mut client);
    commit(&mut workers, &receipts, 1);
    let (index, object) = assigned(&mut workers, "out");
    workers[index].finish(object, false);
    assert_eq!(client.value("out"), 5);
}

#[test]
fn what_is_lost_before_the_barrier_has_come_is_made_again() {
    let cluster = Cluster::new(0);
    let mut workers = Vec::from(["a", "b"].map(|name| Worker::connect(&cluster, name)));
    let mut client = cluster.client("c");
    submit_transfers(&mut client);
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    drop(workers.remove(1));
    workers[0].plan(receipts[0].transfer.shuffle, 2);
    submit_rest(&mut client);
    workers[0].find("shuffle-1").unwrap();
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 2));
    assert_eq!(receipts[0].shares.len(), 2);
}

#[test]
fn a_shuffle_whose_barrier_does_not_come_ends_with_its_submission_or_its_client() {
    let cluster = Cluster::new(0);
    let mut workers = [Worker::connect(&cluster, "a")];
    let mut client = cluster.client("c");
    submit_transfers(&mut client);
    let receipt = transfer(&mut workers, 0, 1);
    let batch = client.batch(&[], &[], true);
    client.say(&FromClient::Submit(batch));
    assert_eq!(workers[0].closed(), receipt.transfer.shuffle);
    let mut other = cluster.client("d");
    submit_transfers(&mut other);
    let receipt = transfer(&mut workers, 0, 1);
    drop(other);
    assert_eq!(workers[0].closed(), receipt.transfer.shuffle);
}

#[test]
fn two_graphs_with_the_same_shuffle_share_it() {
    let cluster = Cluster::new(0);
    let mut workers = [Worker::connect(&cluster, "a")];
    let mut clients = ["c", "d"].map(|name| cluster.client(name));
    clients.iter_mut().for_each(submit);
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    commit(&mut workers, &receipts, 1);
    let (_, object) = assigned(&mut workers, "out");
    workers[0].finish(object, false);
    assert_eq!(workers[0].closed(), receipts[0].transfer.shuffle);
    for client in &mut clients {
        assert_eq!(client.value("out"), 5);
    }
    assert!(
        workers[0]
            .inbox
            .iter()
            .all(|message| !matches!(message, ToWorker::ToNode(_)))
    );
}

#[test]
fn a_partition_is_read_where_it_is() {
    let cluster = Cluster::new(0);
    let mut workers = ["a", "b", "c"].map(|name| Worker::connect(&cluster, name));
    let mut client = cluster.client("c");
    // Two of these three come with a later batch.
    let readers: Vec<String> = (0..3).map(|n| format!("out{n}")).collect();
    let reader = |name: &String| task(name.as_str(), 0, &["barrier"]);
    let at = |mut transfer: Task, worker: &str| {
        transfer.options.workers = vec![worker.into()];
        effects(transfer)
    };
    // Nothing is sent ahead of both.
    let mut tasks = vec![
        at(task("t0", 0, &[]), "a"),
        at(task("t1", 0, &[]), "b"),
        effects(task("barrier", 0, &["t0", "t1"])),
    ];
    tasks.extend(readers[..1].iter().map(reader));
    let mut first = client.batch(&tasks, &["out0"], false);
    first.readers[2] = 3;
    client.say(&FromClient::Register(Registration {
        readers: vec![3, 4, 5],
        reads: vec![7, 0, 4],
        ..registration(first.number)
    }));
    client.say(&FromClient::Submit(first));
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    workers[0].tell_master(ToMaster::Join(receipts[0].transfer.shuffle));
    let plan = workers[0].plan(receipts[0].transfer.shuffle, 1);
    assert_eq!(plan.groups.len(), 3);
    let tasks: Vec<Task> = readers[1..].iter().map(reader).collect();
    let mut rest = client.batch(&tasks, &["out1", "out2"], true);
    rest.ranks = vec![4, 5];
    client.say(&FromClient::Submit(rest));
    commit(&mut workers, &receipts, 1);
    for (name, partition) in readers.iter().zip([7, 0, 4]) {
        let (index, object) = assigned(&mut workers, name);
        let home = plan.group_of(partition).unwrap().id.server.node;
        assert_eq!(workers[index].id, home, "{name}");
        workers[index].finish(object, false);
    }
}

#[test]
fn a_shuffle_that_was_read_ends_and_begins_anew_when_it_is_needed() {
    let cluster = Cluster::new(0);
    let mut workers = Vec::from(["a", "b"].map(|name| Worker::connect(&cluster, name)));
    let mut client = cluster.client("c");
    submit(&mut client);
    let receipts = [0, 1].map(|map| transfer(&mut workers, map, 1));
    commit(&mut workers, &receipts, 1);
    let (index, object) = assigned(&mut workers, "out");
    workers[index].finish(object, true);
    client.result("out");
    for worker in &mut workers {
        assert_eq!(worker.closed(), receipts[0].transfer.shuffle);
    }
    assert_eq!(client.query("shuffles", &[]), Value::List(Vec::new()));
    // What was made of it is lost.
    let gone = workers.remove(index);
    gone.peer.close();
    drop(gone);
    // The same rows, at one worker.
    let again = [0, 1].map(|map| transfer_of(&mut workers, map, 1, 6));
    assert_ne!(again[0].transfer.shuffle, receipts[0].transfer.shuffle);
    commit(&mut workers, &again, 1);
    let (_, object) = assigned(&mut workers, "out");
    workers[0].finish(object, false);
    assert_eq!(client.value("out"), 5);
    assert_eq!(workers[0].closed(), again[0].transfer.shuffle);
    assert_eq!(client.query("shuffles", &[]), Value::List(Vec::new()));
}

/// Two outputs, both read and at different workers, and the one of `workers[0]` gone.
fn lose_one_of_two(client: &mut Client, workers: &mut Vec<Worker>) -> [Receipt; 2] {
    let outputs = ["out", "other"];
    let tasks = outputs.map(|output| {
        let mut reader = task(output, 0, &["barrier"]);
        let worker = if output == "out" { "a" } else { "b" };
        reader.options.workers = vec![worker.into()];
        reader.options.allow_other = true;
        reader
    });
    submit_read_by(client, &tasks);
    let receipts = [0, 1].map(|map| transfer(workers, map, 1));
    commit(workers, &receipts, 1);
    let runs = outputs.map(|output| assigned(workers, output));
    assert_eq!(runs.map(|(index, _)| index), [0, 1]);
    for (output, (index, object)) in outputs.into_iter().zip(runs) {
        workers[index].finish(object, true);
        client.result(output);
    }
    for worker in &mut *workers {
        assert_eq!(worker.closed(), receipts[0].transfer.shuffle);
    }
    let gone = workers.remove(0);
    gone.peer.close();
    receipts
}

#[test]
fn what_was_read_before_a_shuffle_ended_is_of_the_same_run_as_what_is_read_later() {
    // The first two are what there was, at one worker.
    for rows in [6, 7] {
        let cluster = Cluster::new(0);
        let mut workers = Vec::from(["a", "b"].map(|name| Worker::connect(&cluster, name)));
        let mut client = cluster.client("c");
        lose_one_of_two(&mut client, &mut workers);
        let again = [0, 1].map(|map| transfer_of(&mut workers, map, 1, rows));
        if rows == 6 {
            commit(&mut workers, &again, 1);
        } else {
            // The input has other rows than when it ran before.
            let (_, object) = assigned(&mut workers, "barrier");
            let shuffle = again[0].transfer.shuffle;
            let other = Commit::new(shuffle, 2, &again).unwrap();
            workers[0].tell_master(ToMaster::Commit {
                ask: 7,
                commit: other,
            });
            assert_eq!(workers[0].committed(), Err(CommitError::Again(shuffle)));
            workers[0].say(&FromWorker::Report(Report::GivenBack(object)));
            cluster.wait_for_log("all of it runs again");
            let again = [0, 1].map(|map| transfer(&mut workers, map, 2));
            commit(&mut workers, &again, 2);
            let (_, object) = assigned(&mut workers, "other");
            workers[0].finish(object, true);
        }
        let (_, object) = assigned(&mut workers, "out");
        workers[0].finish(object, true);
        client.result("out");
        client.result("other");
        let is_assigned =
            |message: &ToWorker| matches!(message, ToWorker::Command(Command::Assign(_)));
        assert!(!workers[0].inbox.iter().any(is_assigned));
    }
}

#[test]
fn a_shuffle_at_servers_of_its_own_stays_when_workers_are_lost() {
    const SERVICE: &str = "treadle://servers:7790";
    let cluster = Cluster::new(0);
    let mut sidecar = Client::connect(cluster.address(), "side", Role::Sidecar).unwrap();
    let mut workers = Vec::from(["a", "b"].map(|name| Worker::connect(&cluster, name)));
    let mut client = cluster.client("c");
    let lasting = |mut task: Task| {
        task.options.lasting = true;
        effects(task)
    };
    let tasks = [
        lasting(task("t0", 0, &[])),
        lasting(task("t1", 0, &[])),
        lasting(task("barrier", 0, &["t0", "t1"])),
        task("out", 0, &["barrier"]),
    ];
    let batch = client.batch(&tasks, &["out"], true);
    client.say(&FromClient::Register(Registration {
        service: Some(SERVICE.into()),
        ..registration(batch.number)
    }));
    client.say(&FromClient::Submit(batch));
    let run = |workers: &mut Vec<Worker>, key: &str| {
        let (index, object) = assigned(workers, key);
        workers[index].finish(object, false);
        index
    };
    let ran = ["t0", "t1", "barrier"].map(|key| run(&mut workers, key));
    let (reader, _) = assigned(&mut workers, "out");
    let about = workers[reader].ask("shuffle", &[("name", Value::str("shuffle-1"))]);
    let Value::Tuple(about) = about else {
        panic!("{about:?}");
    };
    let number = about[0].clone();
    let outputs = Value::List(vec![Value::Tuple(vec![Value::Int(0), Value::Int(8)])]);
    let has_ended = Value::Bool(false);
    assert_eq!(
        about[3..],
        [Value::Int(10), Value::str(SERVICE), outputs, has_ended]
    );
    // One that ran some of it, and was to read.
    let gone = workers.remove(reader);
    gone.peer.close();
    let (_, object) = assigned(&mut workers, "out");
    // Some rows of map 1 are lost at all servers.
    let lost = |number: &Value| {
        let range = Value::Tuple(vec![Value::Int(1), Value::Int(2)]);
        let name = Value::str("shuffle-1");
        let maps = Value::List(vec![range]);
        [
            ("name", name),
            ("number", number.clone()),
            ("maps", maps),
            ("outputs", Value::Bool(false)),
        ]
    };
    // Of an earlier run nobody needs to know.
    let answer = workers[0].ask("shuffle_lost", &lost(&Value::Int(77)));
    assert_eq!(answer, Value::Bool(false));
    let answer = workers[0].ask("shuffle_lost", &lost(&number));
    assert_eq!(answer, Value::Bool(true), "{ran:?}, {object:?}");
    assert_eq!(
        ["t1", "barrier", "out"].map(|key| run(&mut workers, key)),
        [0; 3]
    );
    assert_eq!(client.value("out"), 5);
    let over = loop {
        let call = sidecar.next_call();
        assert_ne!(call.operation, "shuffle-ended");
        if call.operation == "shuffle-over" {
            break Value::from_bytes(&call.argument).unwrap();
        }
    };
    assert_eq!(over.get("number"), Some(&number));
    assert_eq!(over.get("service"), Some(&Value::str(SERVICE)));
}
