//! A worker's process around its machine, with a scripted scheduler over real sockets.

mod script;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use bytes::Bytes;
use treadle_messages::{Call, Data, FromWorker, Leave, ToWorker};
use treadle_net::Peer;
use treadle_node_worker::{End, EndCause};
use treadle_schedule_wire::{data, decode_data, encode_data};
use treadle_types::{Cause, Command, Holders, Place, Report, WorkerId};

use script::{Function, LONG, Scheduler, assign, object, worker, worker_with};

fn value(byte: u8, length: usize) -> Bytes {
    vec![byte; length].into()
}

/// Reports of finished tasks, by task; whatever else is heard is an error.
fn finished(script: &mut script::Script, count: usize) -> Vec<(u32, Option<Bytes>)> {
    let mut tasks = Vec::new();
    while tasks.len() < count {
        match script.report() {
            Report::Finished { object, value, .. } => tasks.push((object.task.0, value.inline)),
            other => panic!("{other:?}"),
        }
    }
    tasks.sort_by_key(|(task, _)| *task);
    tasks
}

#[test]
fn a_chain_runs_without_the_scheduler() {
    let mut scheduler = Scheduler::new();
    let grow: Function = Arc::new(|_, _, inputs| {
        let before = inputs.first().map_or(0, |input| input[0]);
        Ok(value(before + 1, 1))
    });
    let (_worker, mut script, _host, _directory) =
        worker(&mut scheduler, "a", 2, vec![("grow", grow)]);
    let chain = (0..100).map(|step| {
        let inputs = (step > 0).then(|| (step - 1, Place::Here));
        assign(step, "grow", inputs.into_iter().collect())
    });
    script.say(chain);
    let done = finished(&mut script, 100);
    let expected: Vec<_> = (0..100u8)
        .map(|n| (u32::from(n), Some(value(n + 1, 1))))
        .collect();
    assert_eq!(done, expected);
}

#[test]
fn tasks_run_as_soon_as_there_is_a_thread_for_them() {
    let mut scheduler = Scheduler::new();
    let one: Function = Arc::new(|_, _, _| Ok(value(1, 1)));
    let (_worker, mut script, host, _directory) =
        worker(&mut scheduler, "a", 2, vec![("one", one)]);
    host.no_threads.store(5, Ordering::SeqCst);
    script.say((0..3).map(|task| assign(task, "one", Vec::new())));
    assert_eq!(finished(&mut script, 3).len(), 3);
    assert_eq!(host.no_threads.load(Ordering::SeqCst), 0);
}

#[test]
fn a_worker_that_gets_no_thread_ends() {
    let mut scheduler = Scheduler::new();
    let one: Function = Arc::new(|_, _, _| Ok(value(1, 1)));
    let (worker, mut script, host, _directory) = worker(&mut scheduler, "a", 2, vec![("one", one)]);
    host.no_threads.store(usize::MAX, Ordering::SeqCst);
    script.say([assign(1, "one", Vec::new())]);
    let End { cause, reason } = worker.wait(LONG).unwrap();
    assert_eq!(cause, EndCause::Failed);
    assert!(
        reason.starts_with("a thread of the engine is missing"),
        "{reason}"
    );
    assert!(matches!(script.hear(), FromWorker::Leaving { .. }));
}

#[test]
fn a_worker_whose_only_thread_waits_for_tasks_without_threads_ends() {
    let mut scheduler = Scheduler::new();
    let (began, begun) = channel();
    let wait: Function = Arc::new(move |worker, task, _| {
        worker.secede(task.object);
        began.send(()).unwrap();
        worker.wait(LONG);
        Ok(value(1, 1))
    });
    let one: Function = Arc::new(|_, _, _| Ok(value(1, 1)));
    let (worker, mut script, host, _directory) =
        worker(&mut scheduler, "a", 1, vec![("wait", wait), ("one", one)]);
    script.say([assign(1, "wait", Vec::new())]);
    begun.recv_timeout(LONG).unwrap();
    host.no_threads.store(usize::MAX, Ordering::SeqCst);
    script.say([assign(2, "one", Vec::new())]);
    let End { cause, reason } = worker.wait(LONG).unwrap();
    assert_eq!(cause, EndCause::Failed);
    assert!(
        reason.starts_with("a thread of the engine is missing"),
        "{reason}"
    );
}

#[test]
fn a_worker_with_a_thread_that_panics_ends() {
    let mut scheduler = Scheduler::new();
    let (worker, mut script, _host, _directory) = worker(&mut scheduler, "a", 1, Vec::new());
    script.say([ToWorker::Call(Call {
        id: 1,
        node: "client".into(),
        operation: "panic".into(),
        argument: Bytes::new(),
    })]);
    let End { cause, reason } = worker.wait(LONG).unwrap();
    assert_eq!(cause, EndCause::Failed);
    assert!(
        reason.starts_with("a thread of the engine panicked: it was told to"),
        "{reason}"
    );
    let FromWorker::Leaving { cause, log } = script.hear() else {
        panic!("no goodbye");
    };
    assert_eq!((cause, log), (Cause::Exited(1), reason));
}

#[test]
fn large_values_come_from_the_worker_that_has_them() {
    let mut scheduler = Scheduler::new();
    let make: Function = Arc::new(|_, _, _| Ok(value(3, 3 << 20)));
    let sum: Function = Arc::new(|_, _, inputs| {
        let total: usize = inputs[0].iter().map(|byte| usize::from(*byte)).sum();
        Ok(total.to_string().into())
    });
    let (_a, mut a, _host_a, _directory_a) = worker(&mut scheduler, "a", 1, vec![("make", make)]);
    let (_b, mut b, _host_b, _directory_b) = worker(&mut scheduler, "b", 1, vec![("sum", sum)]);
    a.say([assign(1, "make", Vec::new())]);
    assert_eq!(finished(&mut a, 1), [(1, None)]);
    let address = a.address.clone();
    let holder = Holders::from_slice(&[WorkerId(0)]);
    b.say([
        ToWorker::Peer {
            worker: WorkerId(0),
            address: address.clone(),
        },
        assign(2, "sum", vec![(1, Place::At(holder.clone()))]),
    ]);
    assert!(matches!(b.report(), Report::Stored { object: stored, .. } if stored == object(1)));
    assert_eq!(
        finished(&mut b, 1),
        [(2, Some(Bytes::from((9 << 20).to_string())))]
    );
    // Another incarnation at the same address is a stranger, and so is a value that is gone.
    b.say([
        ToWorker::Command(Command::Release(object(1))),
        ToWorker::Peer {
            worker: WorkerId(7),
            address,
        },
        ToWorker::Command(Command::Copy {
            object: object(1),
            nbytes: 3 << 20,
            holders: Holders::from_slice(&[WorkerId(7)]),
        }),
    ]);
    let Report::CopyFailed {
        object: failed,
        tried,
    } = b.report()
    else {
        panic!("copied from a stranger");
    };
    assert_eq!((failed, &tried[..]), (object(1), &[WorkerId(7)][..]));
    a.say([ToWorker::Command(Command::Release(object(1)))]);
    b.say([assign(3, "sum", vec![(1, Place::At(holder))])]);
    loop {
        match b.report() {
            // The release may come after the request.
            Report::Stored { .. } | Report::Finished { .. } => {
                b.say([
                    ToWorker::Command(Command::Release(object(1))),
                    assign(
                        4,
                        "sum",
                        vec![(1, Place::At(Holders::from_slice(&[WorkerId(0)])))],
                    ),
                ]);
            }
            Report::Unavailable { input, .. } => {
                assert_eq!(input, object(1));
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_request_is_small() {
    let mut scheduler = Scheduler::new();
    let (_worker, script, _host, _directory) = worker(&mut scheduler, "a", 1, Vec::new());
    let address = script.address.parse().unwrap();
    let peer = Peer::connect(&address, &script::net(), &mut script::soon()).unwrap();
    // More than is fetched ahead: what is here already when it is looked at cannot be refused.
    let sent = peer.send(Data::GET, &[value(0, 2 << 20)]).unwrap();
    let refused = sent.wait(&mut script::soon()).unwrap_err().to_string();
    assert!(refused.contains("a request of 2097152 bytes"), "{refused}");
    // The connection serves others.
    let request = encode_data(&data::Get {
        request: 7,
        worker: 0,
        object: 1,
    });
    peer.send(Data::GET, &[request]).unwrap();
    let answer = answer_of(&peer);
    assert_eq!(answer.kind, Data::NO_VALUE);
    let nothing: data::NoValue = decode_data(answer.frames[0].as_slice()).unwrap();
    assert_eq!(nothing.request, 7);
}

fn answer_of(peer: &Peer) -> treadle_net::Received {
    let answer = peer.next(&mut script::soon()).unwrap();
    answer.accept(Vec::new()).unwrap();
    answer.wait(&mut script::soon()).unwrap();
    answer.take().unwrap()
}

/// A value that a client brings, under the name of the object of this task.
fn bring(peer: &Peer, task: u32, bytes: usize) {
    let put = encode_data(&data::Put {
        object: object(task).to_u64(),
        kind: 7,
        worker: 0,
    });
    peer.send(Data::PUT, &[put, value(1, bytes)]).unwrap();
}

#[test]
fn nobody_waits_behind_what_waits_for_memory() {
    const MIB: usize = 1 << 20;
    let mut scheduler = Scheduler::new();
    // Nothing can leave memory.
    let (_worker, mut script, _host, _directory) =
        worker_with(&mut scheduler, "a", 1, Vec::new(), |store| {
            (store.limit, store.target, store.quota) = (16 << 20, 16 << 20, 0);
        });
    let address = script.address.parse().unwrap();
    let connect = || Peer::connect(&address, &script::net(), &mut script::soon()).unwrap();
    let first = connect();
    bring(&first, 1, 12 * MIB);
    assert_eq!(answer_of(&first).kind, Data::TAKEN);
    // More than there are threads that serve. Behind each is one that would have room.
    let waiting: Vec<Peer> = (0..4).map(|_| connect()).collect();
    for (number, peer) in (0..).zip(&waiting) {
        bring(peer, 10 + number, 6 * MIB);
        bring(peer, 20 + number, 8);
    }
    bring(&first, 2, 8);
    assert_eq!(answer_of(&first).kind, Data::TAKEN);
    for task in [1, 2] {
        let get = data::Get {
            request: 7,
            worker: 0,
            object: object(task).to_u64(),
        };
        first.send(Data::GET, &[encode_data(&get)]).unwrap();
        assert_eq!(answer_of(&first).kind, Data::VALUE);
    }
    assert!(waiting.iter().all(|peer| !peer.has_next()));
    // Two have room then, and the others when those are gone.
    let release = |task| ToWorker::Command(Command::Release(object(task)));
    script.say([release(1)]);
    let mut taken = Vec::new();
    while taken.len() < 8 {
        for (number, peer) in (0..).zip(&waiting).filter(|(_, peer)| peer.has_next()) {
            let answer: data::Taken = decode_data(answer_of(peer).frames[0].as_slice()).unwrap();
            assert_eq!(answer.refused, None);
            taken.push(answer.object);
            script.say([release(10 + number)]);
        }
    }
    let place = |task| {
        taken
            .iter()
            .position(|&taken| taken == object(task).to_u64())
    };
    for number in 0..4 {
        assert!(place(10 + number).unwrap() < place(20 + number).unwrap());
    }
}

#[test]
fn what_runs_is_told_from_what_can_be_taken_back() {
    let mut scheduler = Scheduler::new();
    let (started, starts) = channel();
    let (go, gate) = channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let wait: Function = Arc::new(move |_, _, _| {
        started.send(()).unwrap();
        gate.lock().unwrap().recv_timeout(LONG).unwrap();
        Ok(value(1, 1))
    });
    let (_worker, mut script, _host, _directory) =
        worker(&mut scheduler, "a", 1, vec![("wait", wait)]);
    script.say([assign(1, "wait", Vec::new()), assign(2, "wait", Vec::new())]);
    starts.recv_timeout(LONG).unwrap();
    // Heard while the only executor is busy.
    script.say([
        ToWorker::Command(Command::Retract(object(1))),
        ToWorker::Command(Command::Retract(object(2))),
        ToWorker::Command(Command::Cancel(object(1))),
    ]);
    assert_eq!(script.report(), Report::Started(object(1)));
    assert_eq!(script.report(), Report::Retracted(object(2)));
    go.send(()).unwrap();
    assert_eq!(script.report(), Report::Stopped(object(1)));
}

#[test]
fn a_task_that_waits_gives_its_slot_to_another() {
    let mut scheduler = Scheduler::new();
    let (open, gate) = channel::<()>();
    let (open, gate) = (std::sync::Mutex::new(open), std::sync::Mutex::new(gate));
    let outer: Function = Arc::new(move |worker, task, _| {
        worker.secede(task.object);
        gate.lock().unwrap().recv_timeout(LONG).unwrap();
        worker.rejoin(task.object);
        Ok(value(1, 1))
    });
    let inner: Function = Arc::new(move |_, _, _| {
        open.lock().unwrap().send(()).unwrap();
        Ok(value(2, 1))
    });
    let (_worker, mut script, _host, _directory) = worker(
        &mut scheduler,
        "a",
        1,
        vec![("outer", outer), ("inner", inner)],
    );
    script.say([
        assign(1, "outer", Vec::new()),
        assign(2, "inner", Vec::new()),
    ]);
    assert_eq!(script.report(), Report::Seceded(object(1)));
    let mut finished = 0;
    let mut rejoined = false;
    while finished < 2 {
        match script.report() {
            Report::Finished { .. } => finished += 1,
            Report::Rejoined(task) => {
                assert_eq!(task, object(1));
                rejoined = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(rejoined);
}

#[test]
fn calls_pass_while_tasks_run_and_leaving_ends_it() {
    let mut scheduler = Scheduler::new();
    let (go, gate) = channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let wait: Function = Arc::new(move |_, _, _| {
        gate.lock().unwrap().recv_timeout(LONG).unwrap();
        Ok(value(1, 1))
    });
    let (worker, mut script, host, _directory) =
        worker(&mut scheduler, "a", 1, vec![("wait", wait)]);
    let call = Call {
        id: 5,
        node: "someone".into(),
        operation: "ping".into(),
        argument: Bytes::from_static(b"\0"),
    };
    script.say([assign(1, "wait", Vec::new()), ToWorker::Call(call.clone())]);
    host.has_calls(1);
    assert_eq!(host.calls.lock().unwrap()[..], [call]);
    go.send(()).unwrap();
    finished(&mut script, 1);
    worker.drain();
    assert_eq!(script.hear(), FromWorker::Drain);
    script.say([ToWorker::Leave {
        cause: Leave::Drained,
        reason: "drained".into(),
    }]);
    let end = End::new(EndCause::Told(Leave::Drained), "drained");
    assert_eq!(worker.wait(LONG), Some(end));
    assert!(worker.next(true).is_none());
}

#[test]
fn calls_keep_their_order_though_several_threads_take_them_in() {
    const ROUNDS: u32 = 100;
    const CALLS: usize = 3_000;
    let mut scheduler = Scheduler::new();
    let nothing: Function = Arc::new(|_, _, _| Ok(value(1, 1)));
    let (worker, mut script, host, _directory) =
        worker(&mut scheduler, "a", 4, vec![("nothing", nothing)]);
    for round in 0..ROUNDS {
        // Between its tasks, each thread takes in what has come.
        script.say([assign(round, "nothing", Vec::new())]);
        let first = CALLS * round as usize;
        script.say((first..first + CALLS).map(|id| {
            ToWorker::Call(Call {
                id: id as u64,
                node: "someone".into(),
                operation: "ping".into(),
                argument: Bytes::from_static(b"\0"),
            })
        }));
        // The next ones come while a thread is at these.
        host.has_calls(first + 1);
    }
    finished(&mut script, ROUNDS as usize);
    host.has_calls(CALLS * ROUNDS as usize);
    drop(worker);
    let calls = host.calls.lock().unwrap();
    assert!(calls.iter().map(|call| call.id).is_sorted());
}

#[test]
fn a_worker_that_is_told_to_leave_is_not_lost_by_the_end_of_the_connection() {
    for _ in 0..200 {
        let mut scheduler = Scheduler::new();
        let (worker, mut script, _host, _directory) = worker(&mut scheduler, "a", 2, Vec::new());
        // Several threads of the worker take in what comes.
        let lane = std::thread::spawn({
            let worker = worker.clone();
            move || while worker.next(true).is_some() {}
        });
        script.say([ToWorker::Leave {
            cause: Leave::Drained,
            reason: "drained".into(),
        }]);
        drop((script, scheduler));
        let end = End::new(EndCause::Told(Leave::Drained), "drained");
        assert_eq!(worker.wait(LONG), Some(end));
        lane.join().unwrap();
    }
}

#[test]
fn a_worker_ends_with_its_scheduler() {
    let mut scheduler = Scheduler::new();
    let (worker, script, _host, _directory) = worker(&mut scheduler, "a", 1, Vec::new());
    drop((script, scheduler));
    let end = worker.wait(LONG).expect("it ends");
    assert_eq!(end.cause, EndCause::Lost, "{}", end.reason);
}
