//! The master of the shuffle plane: workers and a client that say what real ones would.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Call, FromClient, FromWorker, Registration, Role, ToWorker};
use treadle_net::Peer;
use treadle_node_wire::{Link, introduce};
use treadle_shuffle::{
    AttemptId, Commit, CommitError, Generation, GroupId, Plan, Receipt, Share, ShuffleId, Tally,
    ToMaster, ToNode, Transfer, Verdict,
};
use treadle_types::value::Reader;
use treadle_types::{Command, ObjectId, Report, Returned, Runs, Value};

use crate::support::{self, Client, Cluster, LONG, Task, connect, hello, kwargs, task, wait_long};

/// A worker that does nothing by itself.
struct Worker {
    link: Link<ToWorker, FromWorker>,
    peer: Peer,
    id: u32,
    inbox: VecDeque<ToWorker>,
    /// Workers whose addresses it was told.
    met: BTreeSet<u32>,
}

impl Worker {
    fn connect(cluster: &Cluster, name: &str) -> Self {
        let peer = connect(cluster.address()).unwrap();
        let role = Role::Worker {
            address: format!("sim://{name}"),
            host: "here".into(),
            threads: 1,
            memory: 0,
            resources: Vec::new(),
        };
        let (id, _) = wait_long(|wait| introduce(&peer, &hello(name, role), wait)).unwrap();
        Self {
            link: Link::new(peer.clone(), 1 << 30),
            peer,
            id,
            inbox: VecDeque::new(),
            met: BTreeSet::from([id]),
        }
    }

    fn say(&mut self, message: &FromWorker) {
        self.link.push(message);
        self.link.flush().unwrap();
    }

    fn tell_master(&mut self, message: ToMaster) {
        self.say(&FromWorker::ToMaster(message));
    }

    fn take(&mut self) {
        let mut packets = Vec::new();
        let _ = self.link.receive(64, &mut packets);
        for packet in packets {
            let messages = Link::<ToWorker, FromWorker>::decode(packet).unwrap();
            for message in messages {
                self.hear(message.unwrap());
            }
        }
    }

    fn hear(&mut self, message: ToWorker) {
        match message {
            // What is taken back was not begun.
            ToWorker::Command(Command::Cancel(object)) => {
                self.drop(object, Report::Stopped(object))
            }
            ToWorker::Command(Command::Retract(object)) => {
                self.drop(object, Report::Retracted(object));
            }
            ToWorker::Peer { worker, .. } => {
                self.met.insert(worker.0);
            }
            other => {
                if let ToWorker::ToNode(ToNode::Plan(plan)) = &other {
                    let servers = plan.groups.iter().map(|group| group.id.server.node);
                    assert!(servers.collect::<BTreeSet<_>>().is_subset(&self.met));
                }
                self.inbox.push_back(other);
            }
        }
    }

    fn drop(&mut self, object: ObjectId, report: Report) {
        self.inbox.retain(|message| match message {
            ToWorker::Command(Command::Assign(assignment)) => assignment.object != object,
            _ => true,
        });
        self.say(&FromWorker::Report(report));
    }

    /// Looks for a message until it is there, and takes it out.
    fn next<R>(&mut self, what: &str, is_it: impl Fn(&ToWorker) -> Option<R>) -> R {
        let until = Instant::now() + LONG;
        loop {
            self.take();
            let mut found = self.inbox.iter().enumerate();
            if let Some((place, found)) = found.find_map(|(n, m)| Some((n, is_it(m)?))) {
                self.inbox.remove(place);
                return found;
            }
            assert!(Instant::now() < until, "{what}: {:?}", self.inbox);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn node<R>(&mut self, what: &str, is_it: impl Fn(&ToNode) -> Option<R>) -> R {
        self.next(what, |message| match message {
            ToWorker::ToNode(message) => is_it(message),
            _ => None,
        })
    }

    fn plan(&mut self, shuffle: ShuffleId, generation: u32) -> Plan {
        let wanted = (shuffle, Generation(generation));
        self.node("a plan", |message| match message {
            ToNode::Plan(plan) if (plan.shuffle, plan.generation) == wanted => {
                Some(Plan::clone(plan))
            }
            _ => None,
        })
    }

    /// The worker compares, and has all.
    fn seal(&mut self, shuffle: ShuffleId) -> Tally {
        let seal = self.node("a seal", |message| match message {
            ToNode::Seal(seal) => Some(seal.clone()),
            _ => None,
        });
        self.tell_master(ToMaster::Sealed {
            shuffle,
            group: seal.group,
            round: seal.round,
            verdict: Verdict::Complete,
        });
        seal.expected.tally
    }

    fn committed(&mut self) -> Result<Generation, CommitError> {
        self.node("an answer", |message| match message {
            ToNode::Committed { ask: 7, result, .. } => Some(*result),
            _ => None,
        })
    }

    fn closed(&mut self) -> ShuffleId {
        self.node("the end", |message| match message {
            ToNode::Close(shuffle) => Some(*shuffle),
            _ => None,
        })
    }

    fn ask(&mut self, operation: &str, arguments: &[(&str, Value)]) -> Value {
        self.say(&FromWorker::Call(Call {
            id: 1,
            node: String::new(),
            operation: operation.into(),
            argument: kwargs(arguments).to_bytes().into(),
        }));
        let answer = self.next(operation, |message| match message {
            ToWorker::Answer(answer) => Some(answer.result.clone()),
            _ => None,
        });
        Value::from_bytes(&answer.unwrap()).unwrap()
    }

    /// The number of a shuffle, by its name.
    fn find(&mut self, name: &str) -> Option<ShuffleId> {
        match self.ask("shuffle", &[("name", Value::Str(name.to_owned()))]) {
            Value::Tuple(about) => match &about[..] {
                [
                    Value::Int(number),
                    Value::Int(2),
                    Value::Bytes(spec),
                    Value::Int(10),
                    Value::None,
                    // Which outputs are read, and whether it has ended before.
                    Value::List(_),
                    Value::Bool(_),
                ] if spec == b"spec" => Some(ShuffleId(*number as u64)),
                _ => panic!("{about:?}"),
            },
            Value::None => None,
            other => panic!("{other:?}"),
        }
    }

    fn finish(&mut self, object: ObjectId, is_large: bool) {
        let inline = Bytes::from(Value::Int(5).to_bytes());
        let value = Returned {
            nbytes: 1000,
            inline: (!is_large).then_some(inline),
            kept: is_large,
            class: Bytes::new(),
        };
        let duration = Duration::from_millis(1);
        self.say(&FromWorker::Report(Report::Finished {
            object,
            value,
            duration,
        }));
    }
}

/// The next task that one of the workers is to run: which worker, and which task.
fn assigned(workers: &mut [Worker], key: &str) -> (usize, ObjectId) {
    let until = Instant::now() + LONG;
    loop {
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.take();
            let is_it = |message: &ToWorker| match message {
                ToWorker::Command(Command::Assign(assignment)) => {
                    let found =
                        Reader::new(&assignment.recipe).blob().unwrap() == support::key(key);
                    found.then_some(assignment.object)
                }
                _ => None,
            };
            let mut inbox = worker.inbox.iter().enumerate();
            if let Some((place, object)) = inbox.find_map(|(n, m)| Some((n, is_it(m)?))) {
                worker.inbox.remove(place);
                return (index, object);
            }
        }
        assert!(Instant::now() < until, "{key}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn effects(mut task: Task) -> Task {
    task.options.effects = true;
    task
}

/// A shuffle whose barrier is the third task of a submission.
fn registration(submission: u32) -> Registration {
    Registration {
        submission,
        name: "shuffle-1".into(),
        barrier: 2,
        maps: 2,
        partitions: 10,
        outputs: Runs::range(0, 8),
        spec: Bytes::from_static(b"spec"),
        ..Registration::default()
    }
}

/// Two transfers, a barrier, and a task that reads a partition.
fn submit(client: &mut Client) {
    submit_read_by(client, &[task("out", 0, &["barrier"])]);
}

fn submit_read_by(client: &mut Client, outputs: &[Task]) {
    let mut tasks = vec![
        effects(task("t0", 0, &[])),
        effects(task("t1", 0, &[])),
        effects(task("barrier", 0, &["t0", "t1"])),
    ];
    tasks.extend(outputs.iter().cloned());
    let outputs: Vec<&str> = outputs.iter().map(|output| output.key.as_str()).collect();
    let batch = client.batch(&tasks, &outputs, true);
    client.say(&FromClient::Register(registration(batch.number)));
    client.say(&FromClient::Submit(batch));
}

fn tally(rows: u64) -> Tally {
    let (bytes, digest) = (8 * rows, 77 * rows);
    Tally {
        rows,
        bytes,
        digest,
    }
}

/// Runs a transfer that has rows at all groups of the plan.
fn transfer(workers: &mut [Worker], map: u32, generation: u32) -> Receipt {
    transfer_of(workers, map, generation, 3)
}

fn transfer_of(workers: &mut [Worker], map: u32, generation: u32, rows: u64) -> Receipt {
    let (index, object) = assigned(workers, &format!("t{map}"));
    let worker = &mut workers[index];
    let shuffle = worker.find("shuffle-1").unwrap();
    worker.tell_master(ToMaster::Join(shuffle));
    let plan = worker.plan(shuffle, generation);
    assert_eq!((plan.maps, plan.partitions), (2, 10));
    let attempt = AttemptId(object.to_u64());
    let transfer = Transfer {
        shuffle,
        map,
        attempt,
    };
    let shares = plan.groups.iter().map(|group| Share {
        group: group.id,
        holder: attempt,
        tally: tally(rows),
    });
    let receipt = Receipt {
        transfer,
        shares: shares.collect(),
    };
    worker.finish(object, false);
    worker.tell_master(ToMaster::Transferred {
        transfer,
        groups: receipt.shares.iter().map(|share| share.group).collect(),
        tally: receipt.tally(),
    });
    receipt
}

/// Runs the barrier.
fn commit(workers: &mut [Worker], receipts: &[Receipt], generation: u32) {
    let (index, object) = assigned(workers, "barrier");
    let shuffle = receipts[0].transfer.shuffle;
    let commit = Commit::new(shuffle, 2, receipts).unwrap();
    workers[index].tell_master(ToMaster::Commit { ask: 7, commit });
    for worker in &mut *workers {
        let shares = receipts.iter().flat_map(|receipt| &receipt.shares);
        let here = shares.filter(|share| share.group.server.node == worker.id);
        let expected: Tally = here.map(|share| share.tally).sum();
        assert_eq!(worker.seal(shuffle), expected);
    }
    assert_eq!(workers[index].committed(), Ok(Generation(generation)));
    workers[index].finish(object, false);
}

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
