//! What a task costs on the wire: nanoseconds and bytes, each way.

use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Batch, FromClient, FromWorker, Standing, ToClient, ToWorker};
use treadle_schedule_wire::{Decoder, Encoder, Message};
use treadle_types::{
    Assignment, Attempt, ClientId, Command, Input, ObjectId, Place, Priority, Report, Returned,
    TaskId,
};

const TASKS: u32 = 1000;
const ROUNDS: u32 = 2000;

fn object(task: u32) -> ObjectId {
    ObjectId::new(TaskId(task), Attempt(0))
}

fn assignment(task: u32, inputs: u32) -> ToWorker {
    let input = |input| Input {
        object: object(task - input),
        nbytes: 28,
        place: Place::Inline(Bytes::from_static(b"\x03\x02")),
    };
    ToWorker::Command(Command::Assign(Assignment {
        object: object(task),
        priority: Priority {
            user: 0,
            submission: 1,
            rank: task,
        },
        client: ClientId(1),
        recipe: Bytes::from_static(&[7; 40]),
        inputs: (1..=inputs).map(input).collect(),
        keep: false,
        actor: false,
    }))
}

fn report(task: u32) -> FromWorker {
    FromWorker::Report(Report::Finished {
        object: object(task),
        value: Returned {
            nbytes: 28,
            inline: Some(Bytes::from_static(b"\x03\x02")),
            kept: false,
            class: Bytes::new(),
        },
        duration: Duration::from_nanos(1500),
    })
}

fn notice(id: u32) -> ToClient {
    ToClient::Notice {
        id,
        standing: Standing::Finished {
            nbytes: 28,
            inline: Some(Bytes::from_static(b"\x03\x02")),
            class: Bytes::new(),
            holder: None,
            object: object(id).to_u64(),
        },
    }
}

fn batch(first: u32) -> FromClient {
    let ids: Vec<u32> = (first..first + TASKS / 4).collect();
    let count = ids.len() as u32;
    FromClient::Submit(Batch {
        number: 1,
        last: true,
        first,
        keys: ids
            .iter()
            .map(|id| format!("inc-0123456789abcdef0123456789ab{id:04}").into())
            .collect(),
        tasks: ids.clone(),
        offsets: vec![0; ids.len() + 1],
        inputs: Vec::new(),
        readers: vec![0; ids.len()],
        ranks: (0..count).collect(),
        definition_offsets: (0..=count).collect(),
        definitions: vec![0; ids.len()],
        recipes: ids.iter().map(|_| Bytes::from_static(&[7; 40])).collect(),
        options: vec![0; ids.len()],
        option_sets: vec![Default::default()],
        wanted: ids,
    })
}

fn measure<M: Message>(name: &str, tasks: u32, messages: &[M]) {
    let mut encoder = Encoder::default();
    let (mut encoding, mut decoding) = (Duration::MAX, Duration::MAX);
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for message in messages {
            encoder.push(message);
        }
        let packets: Vec<Vec<u8>> = std::iter::from_fn(|| encoder.take()).collect();
        encoding = encoding.min(started.elapsed());
        bytes = packets.iter().map(Vec::len).sum();
        let packets: Vec<Bytes> = packets.into_iter().map(Bytes::from).collect();
        let started = Instant::now();
        for packet in packets {
            for message in Decoder::<M>::new(packet) {
                std::hint::black_box(message.expect("it was packed here"));
            }
        }
        decoding = decoding.min(started.elapsed());
    }
    let each = |duration: Duration| duration.as_nanos() as f64 / f64::from(tasks);
    println!(
        "{name:24} {:5.1} ns to pack  {:5.1} ns to read  {:5.1} B",
        each(encoding),
        each(decoding),
        bytes as f64 / f64::from(tasks),
    );
}

fn main() {
    let tasks = || 10..10 + TASKS;
    let flat: Vec<_> = tasks().map(|task| assignment(task, 0)).collect();
    measure("assignment, no inputs", TASKS, &flat);
    let tree: Vec<_> = tasks().map(|task| assignment(task, 2)).collect();
    measure("assignment, two inputs", TASKS, &tree);
    let reports: Vec<_> = tasks().map(report).collect();
    measure("report", TASKS, &reports);
    let notices: Vec<_> = tasks().map(notice).collect();
    measure("notice", TASKS, &notices);
    let batches: Vec<_> = (0..4).map(|part| batch(part * TASKS / 4)).collect();
    measure("submission", TASKS, &batches);
}
