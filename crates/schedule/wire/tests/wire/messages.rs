//! Any message.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use treadle_broadcast::Settled;
use treadle_messages::{
    Answer, Batch, Call, Definition, Failed, FailedKind, FromClient, FromWorker, Hello, Leave,
    LostWorker, Member, Registration, Role, Standing, TaskOptions, ToClient, ToWorker, Welcome,
};
use treadle_scheduler::Stuck;
use treadle_types::{
    Assignment, Attempt, Cause, ClientId, Command, Holders, Input, ObjectId, Place, Priority,
    Report, Returned, TaskId, WorkerId,
};

use crate::shuffled::{to_master, to_node};

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        20 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from),
        1 => (any::<u8>(), 0..200_000usize).prop_map(|(byte, length)| vec![byte; length].into()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé0-9:/]{0,12}"
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..200u32, any::<u32>()]
}

fn object() -> impl Strategy<Value = ObjectId> {
    (number(), number()).prop_map(|(task, attempt)| ObjectId::new(TaskId(task), Attempt(attempt)))
}

fn worker() -> impl Strategy<Value = WorkerId> {
    number().prop_map(WorkerId)
}

fn holders() -> impl Strategy<Value = Holders> {
    prop::collection::vec(worker(), 0..4).prop_map(Holders::from_vec)
}

fn priority() -> impl Strategy<Value = Priority> {
    (any::<i32>(), number(), number()).prop_map(|(user, submission, rank)| Priority {
        user,
        submission,
        rank,
    })
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Here),
        bytes().prop_map(Place::Inline),
        holders().prop_map(Place::At),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    (object(), any::<u64>(), place()).prop_map(|(object, nbytes, place)| Input {
        object,
        nbytes,
        place,
    })
}

fn assignment() -> impl Strategy<Value = Assignment> {
    (
        object(),
        priority(),
        number(),
        bytes(),
        prop::collection::vec(input(), 0..4),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(object, priority, client, recipe, inputs, keep, actor)| Assignment {
                object,
                priority,
                client: ClientId(client),
                recipe,
                inputs: inputs.into(),
                keep,
                actor,
            },
        )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        3 => assignment().prop_map(Command::Assign),
        1 => object().prop_map(Command::Retract),
        1 => object().prop_map(Command::Cancel),
        1 => object().prop_map(Command::Release),
        1 => (object(), any::<u64>(), holders()).prop_map(|(object, nbytes, holders)| {
            Command::Copy { object, nbytes, holders }
        }),
    ]
}

fn definition() -> impl Strategy<Value = Definition> {
    (number(), number(), text(), bytes()).prop_map(|(client, number, name, pickle)| Definition {
        client: ClientId(client),
        number,
        name,
        pickle,
    })
}

fn leave() -> impl Strategy<Value = Leave> {
    prop_oneof![
        Just(Leave::Drained),
        Just(Leave::Asked),
        Just(Leave::Over),
        Just(Leave::Dismissed),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    (any::<u64>(), text(), text(), bytes()).prop_map(|(id, node, operation, argument)| Call {
        id,
        node,
        operation,
        argument,
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    (any::<u64>(), any::<bool>(), bytes()).prop_map(|(id, good, bytes)| Answer {
        id,
        result: if good { Ok(bytes) } else { Err(bytes) },
    })
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        Just(Cause::OutOfMemory),
        Just(Cause::MemoryLimit),
        any::<i32>().prop_map(Cause::Signal),
        any::<i32>().prop_map(Cause::Exited),
        Just(Cause::Unreachable),
        Just(Cause::Drained),
        text().prop_map(Cause::Misbehaved),
    ]
}

fn lost() -> impl Strategy<Value = LostWorker> {
    (text(), text(), cause(), text()).prop_map(|(name, address, cause, log)| LostWorker {
        name,
        address,
        cause,
        log,
    })
}

fn peer() -> impl Strategy<Value = (WorkerId, String)> {
    (worker(), text())
}

fn settled() -> impl Strategy<Value = Settled> {
    let numbers = prop::collection::vec(0..50u64, 0..10);
    numbers.prop_map(|numbers| Settled(numbers.into_iter().collect()))
}

fn member() -> impl Strategy<Value = Member> {
    (worker(), text(), text(), text()).prop_map(|(worker, name, address, host)| Member {
        worker,
        name,
        address,
        host,
    })
}

pub(crate) fn to_worker() -> impl Strategy<Value = ToWorker> {
    prop_oneof![
        8 => command().prop_map(ToWorker::Command),
        1 => definition().prop_map(ToWorker::Define),
        1 => number().prop_map(|client| ToWorker::ForgetClient(ClientId(client))),
        1 => number().prop_map(|client| ToWorker::SessionOver(ClientId(client))),
        1 => (number(), settled()).prop_map(|(client, settled)| ToWorker::Settled {
            client: ClientId(client), settled
        }),
        1 => peer().prop_map(|(worker, address)| ToWorker::Peer { worker, address }),
        1 => worker().prop_map(ToWorker::PeerLost),
        1 => (number(), ids()).prop_map(|(client, numbers)| ToWorker::Withdraw {
            client: ClientId(client), numbers
        }),
        1 => call().prop_map(ToWorker::Call),
        1 => answer().prop_map(ToWorker::Answer),
        1 => (leave(), text()).prop_map(|(cause, reason)| ToWorker::Leave { cause, reason }),
        1 => to_node().prop_map(ToWorker::ToNode),
    ]
}

fn returned() -> impl Strategy<Value = Returned> {
    (
        any::<u64>(),
        prop::option::of(bytes()),
        any::<bool>(),
        class(),
    )
        .prop_map(|(nbytes, inline, kept, class)| Returned {
            nbytes,
            inline,
            kept,
            class,
        })
}

/// Few, so that some are the ones before.
fn class() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        Just(Bytes::new()),
        Just(Bytes::from("int")),
        Just(Bytes::from("numpy.ndarray"))
    ]
}

fn duration() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        4 => (object(), returned(), duration()).prop_map(|(object, value, duration)| {
            Report::Finished { object, value, duration }
        }),
        1 => (object(), bytes(), duration()).prop_map(|(object, error, duration)| {
            Report::Failed { object, error, duration }
        }),
        1 => object().prop_map(Report::Retracted),
        1 => object().prop_map(Report::Started),
        1 => object().prop_map(Report::Stopped),
        1 => (object(), object(), holders()).prop_map(|(object, input, tried)| {
            Report::Unavailable { object, input, tried }
        }),
        1 => (object(), any::<u64>()).prop_map(|(object, nbytes)| Report::Stored { object, nbytes }),
        1 => (object(), holders()).prop_map(|(object, tried)| Report::CopyFailed { object, tried }),
        1 => object().prop_map(Report::GivenBack),
        1 => (object(), object(), bytes()).prop_map(|(object, input, error)| {
            Report::Immovable { object, input, error }
        }),
        1 => object().prop_map(Report::NotCopyable),
        1 => object().prop_map(Report::Gone),
        1 => object().prop_map(Report::Seceded),
        1 => object().prop_map(Report::Rejoined),
        1 => (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(managed, process, spilled, paused)| Report::Health {
                managed, process, spilled, paused
            }
        ),
    ]
}

pub(crate) fn from_worker() -> impl Strategy<Value = FromWorker> {
    prop_oneof![
        8 => report().prop_map(FromWorker::Report),
        1 => Just(FromWorker::Drain),
        1 => to_master().prop_map(FromWorker::ToMaster),
        1 => number().prop_map(|client| FromWorker::AskSettled(ClientId(client))),
        1 => call().prop_map(FromWorker::Call),
        1 => answer().prop_map(FromWorker::Answer),
        1 => (cause(), text()).prop_map(|(cause, log)| FromWorker::Leaving { cause, log }),
    ]
}

fn failed() -> impl Strategy<Value = Failed> {
    let kind = prop_oneof![
        bytes().prop_map(FailedKind::Raised),
        prop::collection::vec(lost(), 0..3).prop_map(FailedKind::WorkersLost),
        lost().prop_map(FailedKind::DataLost),
        lost().prop_map(FailedKind::ActorLost),
        bytes().prop_map(FailedKind::Unavailable),
    ];
    (bytes(), kind).prop_map(|(key, kind)| Failed { key, kind })
}

fn standing() -> impl Strategy<Value = Standing> {
    let finished = (
        any::<u64>(),
        prop::option::of(bytes()),
        class(),
        prop::option::of(worker()),
        object(),
    );
    prop_oneof![
        4 => finished.prop_map(|(nbytes, inline, class, holder, object)| Standing::Finished {
            nbytes, inline, class, holder, object: object.to_u64()
        }),
        1 => failed().prop_map(Standing::Failed),
        1 => bytes().prop_map(Standing::Cancelled),
        1 => Just(Standing::Pending),
        1 => Just(Standing::Unknown),
    ]
}

fn stuck() -> impl Strategy<Value = Stuck> {
    prop_oneof![
        Just(Stuck::NoWorkers),
        Just(Stuck::Restrictions),
        Just(Stuck::Resources),
        Just(Stuck::Memory),
        Just(Stuck::Silence),
        Just(Stuck::Slots),
    ]
}

pub(crate) fn to_client() -> impl Strategy<Value = ToClient> {
    prop_oneof![
        8 => (number(), standing()).prop_map(|(id, standing)| ToClient::Notice { id, standing }),
        1 => (number(), any::<u64>(), settled()).prop_map(
            |(id, object, workers)| ToClient::Place { id, object, workers: workers.0 }
        ),
        1 => peer().prop_map(|(worker, address)| ToClient::Peer { worker, address }),
        1 => worker().prop_map(ToClient::PeerLost),
        1 => call().prop_map(ToClient::Call),
        1 => answer().prop_map(ToClient::Answer),
        1 => (prop::collection::vec(bytes(), 0..3), stuck()).prop_map(|(keys, reason)| {
            ToClient::Stuck { keys, reason }
        }),
        1 => ids().prop_map(ToClient::Bring),
        1 => ids().prop_map(ToClient::Unkeep),
        1 => ids().prop_map(ToClient::Unused),
        1 => prop::collection::vec(member(), 0..3).prop_map(ToClient::Joined),
        1 => (worker(), cause()).prop_map(|(worker, cause)| ToClient::Left { worker, cause }),
        1 => worker().prop_map(ToClient::SettledAsked),
        1 => Just(ToClient::Restarted),
    ]
}

fn resources() -> impl Strategy<Value = Vec<(String, f64)>> {
    prop::collection::vec((text(), -1e9..1e9f64), 0..3)
}

fn options() -> impl Strategy<Value = TaskOptions> {
    (
        any::<i32>(),
        number(),
        prop::collection::vec(text(), 0..3),
        any::<bool>(),
        resources(),
        any::<bool>(),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(priority, retries, workers, allow_other, resources, actor, [effects, lasting])| {
                TaskOptions {
                    priority,
                    retries,
                    workers,
                    allow_other,
                    resources,
                    actor,
                    effects,
                    lasting,
                }
            },
        )
}

type Row = (u32, Vec<u32>, u32, u32, Vec<u32>, Bytes, u16);

fn row() -> impl Strategy<Value = Row> {
    let few = || prop::collection::vec(number(), 0..4);
    (
        number(),
        few(),
        number(),
        number(),
        few(),
        bytes(),
        any::<u16>(),
    )
}

fn batch() -> impl Strategy<Value = Batch> {
    (
        (number(), any::<bool>(), number()),
        prop::collection::vec(bytes(), 0..4),
        prop::collection::vec(row(), 0..6),
        prop::collection::vec(options(), 0..3),
        prop::collection::vec(number(), 0..4),
    )
        .prop_map(|((number, last, first), keys, rows, option_sets, wanted)| {
            let mut batch = Batch {
                number,
                last,
                first,
                keys,
                offsets: vec![0],
                definition_offsets: vec![0],
                option_sets,
                wanted,
                ..Batch::default()
            };
            for (task, inputs, readers, rank, definitions, recipe, options) in rows {
                batch.tasks.push(task);
                batch.inputs.extend(inputs);
                batch.offsets.push(batch.inputs.len() as u32);
                batch.readers.push(readers);
                batch.ranks.push(rank);
                batch.definitions.extend(definitions);
                batch
                    .definition_offsets
                    .push(batch.definitions.len() as u32);
                batch.recipes.push(recipe);
                batch.options.push(options);
            }
            batch
        })
}

fn registration() -> impl Strategy<Value = Registration> {
    let readers = prop::collection::vec((number(), number()), 0..5);
    (
        (number(), text(), number(), number(), 0..1000u32),
        (
            settled(),
            prop::option::of(text()),
            bytes(),
            readers,
            text(),
        ),
    )
        .prop_map(
            |(
                (submission, name, barrier, maps, partitions),
                (outputs, aligned, spec, readers, kind),
            )| {
                let (readers, reads) = readers.into_iter().unzip();
                Registration {
                    submission,
                    name,
                    barrier,
                    maps,
                    partitions,
                    outputs: outputs.0,
                    service: aligned.clone().filter(|_| maps % 2 == 0),
                    aligned,
                    spec,
                    readers,
                    reads,
                    kind,
                }
            },
        )
}

fn put() -> impl Strategy<Value = FromClient> {
    (
        number(),
        bytes(),
        any::<u64>(),
        prop::option::of(bytes()),
        class(),
        prop::collection::vec(text(), 0..3),
        number(),
        any::<bool>(),
    )
        .prop_map(
            |(id, key, nbytes, inline, class, workers, copies, kept)| FromClient::Put {
                id,
                key,
                nbytes,
                inline,
                class,
                workers,
                copies,
                kept,
            },
        )
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(number(), 0..20)
}

pub(crate) fn from_client() -> impl Strategy<Value = FromClient> {
    prop_oneof![
        1 => definition().prop_map(FromClient::Define),
        3 => batch().prop_map(FromClient::Submit),
        1 => registration().prop_map(FromClient::Register),
        1 => put(),
        1 => (number(), prop::collection::vec(bytes(), 0..4)).prop_map(|(first, keys)| {
            FromClient::Want { first, keys }
        }),
        2 => ids().prop_map(FromClient::Release),
        1 => (ids(), any::<bool>(), bytes()).prop_map(|(ids, force, reason)| FromClient::Cancel {
            ids, force, reason
        }),
        1 => ids().prop_map(FromClient::Retry),
        1 => ids().prop_map(FromClient::Unkept),
        1 => ids().prop_map(FromClient::Undefine),
        1 => call().prop_map(FromClient::Call),
        1 => answer().prop_map(FromClient::Answer),
        1 => Just(FromClient::Members),
        1 => (worker(), settled()).prop_map(|(worker, settled)| FromClient::SettledTold {
            worker, settled
        }),
        1 => Just(FromClient::Goodbye),
    ]
}

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    let role = prop_oneof![
        Just(Role::Client),
        Just(Role::Sidecar),
        (text(), text(), number(), any::<u64>(), resources()).prop_map(
            |(address, host, threads, memory, resources)| Role::Worker {
                address,
                host,
                threads,
                memory,
                resources,
            }
        ),
    ];
    (role, text(), text(), text(), bytes()).prop_map(|(role, name, python, version, info)| Hello {
        role,
        name,
        python,
        version,
        info,
    })
}

pub(crate) fn welcome() -> impl Strategy<Value = Welcome> {
    prop_oneof![
        (number(), bytes()).prop_map(|(id, info)| Welcome::Accepted { id, info }),
        text().prop_map(Welcome::Refused),
    ]
}
