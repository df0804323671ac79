//! The broadcast plane over real sockets: a client, engines on one machine that belong to hosts as a
//! test says.

mod cluster;
mod processes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_node_client::Change;
use treadle_node_scheduler::Server;
use treadle_types::Value;

use cluster::{Caster, Engine, LONG, Notes, Run, server, soon};

/// Answers with the sum of all bytes of what came.
fn sums() -> Run {
    Arc::new(|_, cast| {
        let bytes = cast.frames.iter().flat_map(|frame| frame.as_slice());
        let sum: u64 = bytes.map(|byte| u64::from(*byte)).sum();
        vec![Bytes::from(sum.to_le_bytes().to_vec())]
    })
}

fn sum(frames: &[Bytes]) -> Bytes {
    let sum: u64 = frames.iter().flatten().map(|byte| u64::from(*byte)).sum();
    Bytes::from(sum.to_le_bytes().to_vec())
}

fn pattern(length: usize) -> Bytes {
    let byte = |i: usize| (i % 251) as u8 ^ (i >> 16) as u8;
    (0..length).map(byte).collect::<Vec<u8>>().into()
}

/// So many engines, each on the host that `host` says.
fn engines(
    server: &Server,
    count: usize,
    host: impl Fn(usize) -> String,
    run: &Run,
) -> Vec<Engine> {
    let engine = |i| Engine::new(server, &format!("w{i}"), &host(i), 0, Arc::clone(run));
    (0..count).map(engine).collect()
}

fn here() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().to_owned()
}

#[test]
fn every_engine_gets_what_was_cast_and_the_client_every_result() {
    for hosts in [1, 3, 9] {
        let server = server();
        let host = |i: usize| match hosts {
            1 => here(),
            _ => format!("host-{}", i % hosts),
        };
        let engines = engines(&server, 9, host, &sums());
        let mut client = Caster::new(&server, "client-a");
        let ids = client.engines(9);
        for length in [0, 100, 100_000, 5 << 20] {
            let frames = [Bytes::from_static(b"head"), pattern(length)];
            let number = client.cast(&ids, &frames);
            let outcome = client.outcome(number);
            assert_eq!(outcome.results.len(), 9);
            for (engine, result) in outcome.results {
                assert_eq!(result.as_deref(), Ok(&[sum(&frames)][..]), "{engine}");
            }
        }
        drop(engines);
    }
}

#[test]
fn a_cast_that_comes_before_anybody_could_be_told_is_told_of_later() {
    let server = server();
    let (worker, _directory) = cluster::worker(server.address(), "early", &here(), 0);
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(1);
    client.cast(&ids, &[Bytes::from_static(b"head")]);
    let deadline = Instant::now() + LONG;
    while worker.casts_waiting() == 0 {
        assert!(Instant::now() < deadline, "the cast does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    let notes = Arc::new(Notes::default());
    worker.start(Arc::clone(&notes) as _);
    assert!(notes.came.load(Ordering::SeqCst));
}

/// The least of several: what is late on a busy machine is asked for again, and from the client, too.
fn least(traffic: impl FnMut() -> u64) -> u64 {
    std::iter::repeat_with(traffic).take(5).min().unwrap()
}

#[test]
fn what_the_client_sends_does_not_depend_on_the_number_of_engines() {
    let mut sent = Vec::new();
    for count in [1, 4, 12] {
        let server = server();
        let _engines = engines(&server, count, |i| format!("host-{i}"), &sums());
        let mut client = Caster::new(&server, "client-a");
        let ids = client.engines(count);
        let frames = [Bytes::from_static(b"head"), pattern(3 << 20)];
        // Whom it speaks to, it is told once.
        let first = client.cast(&ids, &frames);
        client.outcome(first);
        sent.push(least(|| {
            let before = client.traffic();
            let number = client.cast(&ids, &frames);
            client.outcome(number);
            client.traffic().bytes - before.bytes
        }));
    }
    // The payload once, and a few words.
    let most = (3 << 20) + 10_000;
    assert!(sent.iter().all(|bytes| *bytes < most), "{sent:?}");
}

#[test]
fn a_host_has_one_copy() {
    let server = server();
    let engines = engines(&server, 8, |_| here(), &sums());
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(8);
    let frames = [Bytes::from_static(b"head"), pattern(8 << 20)];
    let mut before = 0;
    let sent = least(|| {
        let number = client.cast(&ids, &frames);
        let outcome = client.outcome(number);
        assert!(
            outcome
                .results
                .values()
                .all(|result| result.as_deref() == Ok(&[sum(&frames)][..]))
        );
        let workers = engines
            .iter()
            .map(|engine| engine.worker.cast_traffic().bytes);
        let sent = workers.sum::<u64>() + client.traffic().bytes;
        sent - std::mem::replace(&mut before, sent)
    });
    // No byte of it went through a socket.
    assert!(sent < 100_000, "{sent}");
}

#[test]
fn engines_run_each_client_s_casts_once_and_in_order() {
    let server = server();
    let engines = engines(&server, 6, |i| format!("host-{}", i % 2), &sums());
    let mut clients = [
        Caster::new(&server, "client-a"),
        Caster::new(&server, "client-b"),
    ];
    for client in &mut clients {
        client.engines(6);
    }
    let ids: Vec<u32> = engines.iter().map(Engine::id).collect();
    let mut numbers = Vec::new();
    for step in 0..40 {
        for client in &clients {
            // Trees differ: so do sizes and engines.
            let length = [10, 200_000, 0][step % 3];
            let some = &ids[step % 3..];
            numbers.push(client.cast(some, &[pattern(length)]));
        }
    }
    for (i, number) in numbers.into_iter().enumerate() {
        clients[i % 2].outcome(number);
    }
    for engine in &engines {
        let ran = engine.ran.lock().unwrap();
        for client in &clients {
            let of_client = ran
                .iter()
                .filter(|(whose, _)| whose.0 == client.client.id());
            let order: Vec<u64> = of_client.map(|(_, number)| *number).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(order, sorted);
        }
        assert!(ran.len() > 20);
    }
}

#[test]
fn a_worker_that_dies_is_lost_and_the_others_have_results() {
    let server = server();
    let (entered, gate) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, open) = (Arc::clone(&entered), Arc::clone(&gate));
    let waits: Run = Arc::new(move |_, cast| {
        *count.lock().unwrap() += 1;
        let deadline = Instant::now() + LONG;
        while !open.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        vec![Bytes::copy_from_slice(cast.frames[0].as_slice())]
    });
    let engines = engines(&server, 7, |i| format!("host-{i}"), &waits);
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(7);
    let frames = [Bytes::from_static(b"head"), pattern(1 << 20)];
    let number = client.cast(&ids, &frames);
    let deadline = Instant::now() + LONG;
    while *entered.lock().unwrap() < 7 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first one relays to others, whichever the tree.
    engines[0].kill();
    gate.store(true, Ordering::SeqCst);
    let outcome = client.outcome(number);
    for (engine, result) in &outcome.results {
        match engine {
            0 => assert!(
                result
                    .as_ref()
                    .is_err_and(|reason| reason.starts_with("lost"))
            ),
            _ => assert_eq!(result.as_deref(), Ok(&[frames[0].clone()][..])),
        }
    }
    assert_eq!(outcome.results.len(), 7);
    // A cast to one that is gone says so at once.
    let number = client.cast(&ids, &frames);
    let outcome = client.outcome(number);
    let lost = outcome.results.values().filter(|result| result.is_err());
    assert_eq!(lost.count(), 1);
}

#[test]
fn relays_die_while_they_relay() {
    for victims in [vec![0], vec![1, 2], vec![0, 1, 5]] {
        let server = server();
        let engines = engines(&server, 9, |i| format!("host-{i}"), &sums());
        let mut client = Caster::new(&server, "client-a");
        let ids = client.engines(9);
        let frames = [Bytes::from_static(b"head"), pattern(16 << 20)];
        let number = client.cast(&ids, &frames);
        // Chunks are under way: between the first and the last of them.
        let deadline = Instant::now() + LONG;
        while client.traffic().bytes < 1 << 20 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_micros(200));
        }
        for &victim in &victims {
            engines[victim].kill();
        }
        let outcome = client.outcome(number);
        assert_eq!(outcome.results.len(), 9);
        let is_victim = |engine: &u32| victims.iter().any(|&i| engines[i].id() == *engine);
        for (engine, result) in &outcome.results {
            match result {
                // It may have been done before it died.
                Ok(result) => assert_eq!(result[..], [sum(&frames)], "{engine}"),
                Err(reason) => assert!(
                    is_victim(engine) && reason.starts_with("lost"),
                    "{engine}: {reason}"
                ),
            }
        }
        for engine in &engines {
            let ran = engine.ran.lock().unwrap().len();
            assert!(ran <= 1, "{} ran it {ran} times", engine.id());
        }
    }
}

#[test]
fn a_payload_that_does_not_fit_is_refused_by_those_engines_alone() {
    let server = server();
    let small = Engine::new(&server, "small", "host-0", 1 << 20, sums());
    let large = Engine::new(&server, "large", "host-1", 1 << 30, sums());
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(2);
    let frames = [Bytes::from_static(b"head"), pattern(2 << 20)];
    let number = client.cast(&ids, &frames);
    let outcome = client.outcome(number);
    let reason = outcome.results[&small.id()].as_ref().unwrap_err();
    assert!(
        reason.contains("small") && reason.contains("1048576"),
        "{reason}"
    );
    assert_eq!(
        outcome.results[&large.id()].as_deref(),
        Ok(&[sum(&frames)][..])
    );
    // What fits runs there.
    let number = client.cast(&ids, &frames[..1]);
    assert!(client.outcome(number).results.values().all(Result::is_ok));
}

#[test]
fn what_has_not_begun_is_aborted() {
    let server = server();
    let waits: Run = Arc::new(|engine, cast| {
        engine.until_interrupted(cast);
        Vec::new()
    });
    let engines = engines(&server, 4, |_| here(), &waits);
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(4);
    let head = [Bytes::from_static(b"head")];
    let first = client.cast(&ids, &head);
    let deadline = Instant::now() + LONG;
    while engines
        .iter()
        .any(|engine| engine.ran.lock().unwrap().is_empty())
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (second, third) = (client.cast(&ids, &head), client.cast(&ids, &head));
    client.client.abort_casts(&[second], false);
    // It goes the same ways: when it has come, the one before has, too.
    client.client.abort_casts(&[first], true);
    client.client.abort_casts(&[third], true);
    assert!(client.outcome(first).results.values().all(Result::is_ok));
    let aborted = client.outcome(second).results;
    assert!(
        aborted
            .values()
            .all(|result| result.as_ref().is_err_and(|why| why == "aborted"))
    );
    let last = client.outcome(third).results;
    assert_eq!(last.len(), 4);
    for engine in &engines {
        let ran = engine.ran.lock().unwrap();
        assert!(ran.iter().all(|(_, number)| *number != second));
    }
}

#[test]
fn outputs_and_large_results_come_back() {
    let server = server();
    let talks: Run = Arc::new(|engine, cast| {
        let worker = &engine.worker;
        let text = format!("{} says", worker.id().0);
        worker.cast_output(cast.client, cast.number, text.into());
        vec![
            Bytes::new(),
            vec![worker.id().0 as u8; 300_000].into(),
            Bytes::from_static(b"end"),
        ]
    });
    let _engines = engines(&server, 5, |i| format!("host-{}", i % 2), &talks);
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(5);
    let number = client.cast(&ids, &[Bytes::from_static(b"head")]);
    let outcome = client.outcome(number);
    for (engine, result) in &outcome.results {
        let result = result.as_ref().unwrap();
        let lengths: Vec<usize> = result.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [0, 300_000, 3]);
        assert!(result[1].iter().all(|byte| u32::from(*byte) == *engine));
    }
    let mut outputs = outcome.outputs;
    outputs.sort();
    let expected: Vec<_> = (0..5)
        .map(|id| (id, Bytes::from(format!("{id} says"))))
        .collect();
    assert_eq!(outputs, expected);
}

#[test]
fn memory_goes_back_when_everybody_has_finished() {
    let server = server();
    let _engines = engines(&server, 4, |i| format!("host-{i}"), &sums());
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(4);
    for _ in 0..5 {
        let number = client.cast(&ids, &[pattern(2 << 20)]);
        client.outcome(number);
    }
    // A client that leaves takes everything with it, whatever was settled.
    client.client.close(&mut soon());
    drop(client);
    let deadline = Instant::now() + LONG;
    while _engines
        .iter()
        .any(|engine| engine.worker.health().managed > 0)
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn addresses(engines: &[Engine]) -> Vec<String> {
    let address = |engine: &Engine| engine.worker.address().to_owned();
    let mut addresses: Vec<String> = engines.iter().map(address).collect();
    addresses.sort();
    addresses
}

#[test]
fn a_value_is_kept_by_all_workers_and_leaves_the_client_once() {
    let mut traffics = Vec::new();
    for count in [2, 7] {
        let server = server();
        let host = |i: usize| format!("host-{}", i % 3);
        let engines = engines(&server, count, host, &sums());
        let mut client = Caster::new(&server, "client-a");
        client.engines(count);
        for (key, length) in [("small", 2_000), ("large", 3 << 20)] {
            let change = client.put(key, pattern(length), u32::MAX);
            assert!(matches!(change, Change::Finished { .. }), "{change:?}");
            assert_eq!(client.who_has(key), addresses(&engines));
        }
        let mut round = 0;
        let mut messages = u64::MAX;
        let bytes = least(|| {
            round += 1;
            let before = client.traffic();
            client.put(&format!("last-{round}"), pattern(3 << 20), u32::MAX);
            let after = client.traffic();
            // Some of what was sent is about chunks that have come.
            messages = messages.min(after.messages - before.messages);
            after.bytes + after.shared - before.bytes - before.shared
        });
        assert!(bytes < (3 << 20) + 4096);
        traffics.push(messages);
    }
    assert!(traffics[1] < traffics[0] + 10, "{traffics:?}");
}

#[test]
fn a_value_is_kept_beside_what_engines_run() {
    let server = server();
    let gate = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&gate);
    let run: Run = Arc::new(move |_, _| {
        let deadline = Instant::now() + LONG;
        while !open.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Vec::new()
    });
    let engines = engines(&server, 3, |_| here(), &run);
    let mut client = Caster::new(&server, "client-a");
    let ids = client.engines(3);
    let number = client.cast(&ids, &[pattern(10)]);
    client.put("x", pattern(100_000), u32::MAX);
    assert_eq!(client.who_has("x"), addresses(&engines));
    gate.store(true, Ordering::SeqCst);
    assert_eq!(client.outcome(number).results.len(), 3);
}

#[test]
fn workers_without_memory_for_a_value_do_not_keep_it_from_others() {
    let server = server();
    let limits = [0, 1 << 20, 0];
    let engine =
        |(i, limit): (usize, &u64)| Engine::new(&server, &format!("w{i}"), &here(), *limit, sums());
    let all: Vec<Engine> = limits.iter().enumerate().map(engine).collect();
    let mut client = Caster::new(&server, "client-a");
    client.engines(3);
    client.put("x", pattern(3 << 20), u32::MAX);
    let others = [&all[0], &all[2]].map(|engine| engine.worker.address().to_owned());
    let mut others = others.to_vec();
    others.sort();
    assert_eq!(client.who_has("x"), others);
}

#[test]
fn where_no_worker_has_memory_for_a_value_the_error_names_one() {
    let server = server();
    let engine = |i| Engine::new(&server, &format!("w{i}"), &here(), 1 << 20, sums());
    let _small: Vec<Engine> = (0..2).map(engine).collect();
    let mut client = Caster::new(&server, "client-a");
    client.engines(2);
    // A cast to all, or brought to one: that is what is left where the other has paused.
    for (key, copies) in [("all", u32::MAX), ("one", 1)] {
        let change = client.put(key, pattern(3 << 20), copies);
        let Change::Cancelled(reason) = change else {
            panic!("{copies}: {change:?}");
        };
        let reason = format!("{:?}", Value::from_bytes(&reason).unwrap());
        assert!(reason.contains("memory limit of worker w"), "{reason}");
    }
}
