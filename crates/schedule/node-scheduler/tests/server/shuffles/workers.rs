//! Workers and a client that say what real ones would.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Call, FromClient, FromWorker, Registration, Role, ToWorker};
use treadle_net::Peer;
use treadle_schedule_wire::{Link, introduce};
use treadle_shuffle::{
    AttemptId, Commit, CommitError, Generation, Plan, Receipt, Share, ShuffleId, Tally, ToMaster,
    ToNode, Transfer, Verdict,
};
use treadle_types::value::Reader;
use treadle_types::{Command, ObjectId, Report, Returned, Runs, Value};

use crate::support::{self, Client, Cluster, LONG, Task, connect, hello, kwargs, task, wait_long};

/// A worker that does nothing by itself.
pub(super) struct Worker {
    link: Link<ToWorker, FromWorker>,
    pub(super) peer: Peer,
    pub(super) id: u32,
    pub(super) inbox: VecDeque<ToWorker>,
    /// Workers whose addresses it was told.
    met: BTreeSet<u32>,
}

impl Worker {
    pub(super) fn connect(cluster: &Cluster, name: &str) -> Self {
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

    pub(super) fn say(&mut self, message: &FromWorker) {
        self.link.push(message);
        self.link.flush().unwrap();
    }

    pub(super) fn tell_master(&mut self, message: ToMaster) {
        self.say(&FromWorker::ToMaster(message));
    }

    pub(super) fn take(&mut self) {
        let mut packets = Vec::new();
        let _ = self.link.receive(64, &mut packets);
        for packet in packets {
            let messages = Link::<ToWorker, FromWorker>::decode(packet).unwrap();
            for message in messages {
                self.hear(message.unwrap());
            }
        }
    }

    pub(super) fn hear(&mut self, message: ToWorker) {
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

    pub(super) fn drop(&mut self, object: ObjectId, report: Report) {
        self.inbox.retain(|message| match message {
            ToWorker::Command(Command::Assign(assignment)) => assignment.object != object,
            _ => true,
        });
        self.say(&FromWorker::Report(report));
    }

    /// Looks for a message until it is there, and takes it out.
    pub(super) fn next<R>(&mut self, what: &str, is_it: impl Fn(&ToWorker) -> Option<R>) -> R {
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

    pub(super) fn node<R>(&mut self, what: &str, is_it: impl Fn(&ToNode) -> Option<R>) -> R {
        self.next(what, |message| match message {
            ToWorker::ToNode(message) => is_it(message),
            _ => None,
        })
    }

    pub(super) fn plan(&mut self, shuffle: ShuffleId, generation: u32) -> Plan {
        let wanted = (shuffle, Generation(generation));
        self.node("a plan", |message| match message {
            ToNode::Plan(plan) if (plan.shuffle, plan.generation) == wanted => {
                Some(Plan::clone(plan))
            }
            _ => None,
        })
    }

    /// The worker compares, and has all.
    pub(super) fn seal(&mut self, shuffle: ShuffleId) -> Tally {
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

    pub(super) fn committed(&mut self) -> Result<Generation, CommitError> {
        self.node("an answer", |message| match message {
            ToNode::Committed { ask: 7, result, .. } => Some(*result),
            _ => None,
        })
    }

    pub(super) fn closed(&mut self) -> ShuffleId {
        self.node("the end", |message| match message {
            ToNode::Close(shuffle) => Some(*shuffle),
            _ => None,
        })
    }

    pub(super) fn ask(&mut self, operation: &str, arguments: &[(&str, Value)]) -> Value {
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
    pub(super) fn find(&mut self, name: &str) -> Option<ShuffleId> {
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

    pub(super) fn finish(&mut self, object: ObjectId, is_large: bool) {
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
pub(super) fn assigned(workers: &mut [Worker], key: &str) -> (usize, ObjectId) {
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

pub(super) fn effects(mut task: Task) -> Task {
    task.options.effects = true;
    task
}

/// A shuffle whose barrier is the third task of a submission.
pub(super) fn registration(submission: u32) -> Registration {
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
pub(super) fn submit(client: &mut Client) {
    submit_read_by(client, &[task("out", 0, &["barrier"])]);
}

pub(super) fn submit_read_by(client: &mut Client, outputs: &[Task]) {
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

pub(super) fn tally(rows: u64) -> Tally {
    let (bytes, digest) = (8 * rows, 77 * rows);
    Tally {
        rows,
        bytes,
        digest,
    }
}

/// Runs a transfer that has rows at all groups of the plan.
pub(super) fn transfer(workers: &mut [Worker], map: u32, generation: u32) -> Receipt {
    transfer_of(workers, map, generation, 3)
}

pub(super) fn transfer_of(workers: &mut [Worker], map: u32, generation: u32, rows: u64) -> Receipt {
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
pub(super) fn commit(workers: &mut [Worker], receipts: &[Receipt], generation: u32) {
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
