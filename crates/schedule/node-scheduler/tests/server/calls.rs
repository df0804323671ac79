//! Questions between nodes, and to the scheduler.

use std::time::Duration;

use bytes::Bytes;
use treadle_messages::{Answer, Call, FromClient, FromWorker, Leave, Role, Standing, ToClient};
use treadle_node_scheduler::{Options, Server};
use treadle_types::Value;

use crate::support::{Client, Cluster, Task, key, kwargs, task, texts};
use crate::swarm::Profile;

#[test]
fn questions_reach_workers_by_name_and_by_address() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("client-1");
    for node in ["w1", "sim://w1"] {
        let answer = client.call(node, "echo", Value::Int(3)).unwrap();
        assert_eq!(
            answer,
            Value::Tuple(vec![Value::str("client-1"), Value::Int(3)])
        );
    }
    assert_eq!(
        client.call("w0", "raise", Value::str("no")),
        Err(Value::str("no"))
    );
}

#[test]
fn clients_ask_clients_and_workers_ask_both() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile::named("w"));
    let mut one = cluster.client("client-1");
    let mut sidecar = Client::connect(cluster.address(), "side", Role::Sidecar).unwrap();
    for (number, node) in ["client-1", "sidecar"].into_iter().enumerate() {
        cluster.swarm.say(
            worker,
            FromWorker::Call(Call {
                id: number as u64,
                node: node.into(),
                operation: "hear".into(),
                argument: Value::Int(1).to_bytes().into(),
            }),
        );
        let asked = if node == "sidecar" {
            &mut sidecar
        } else {
            &mut one
        };
        let call = loop {
            let call = asked.next_call();
            if call.operation == "hear" {
                break call;
            }
        };
        assert_eq!(call.node, "sim://w");
        asked.say(&FromClient::Answer(Answer {
            id: call.id,
            result: Ok(call.argument),
        }));
        cluster.swarm.wait_for("the answer", |seen| {
            let result = Ok(Bytes::from(Value::Int(1).to_bytes()));
            let answer = Answer {
                id: number as u64,
                result,
            };
            seen.answers.contains(&(worker, answer))
        });
    }
    let id = sidecar.ask("client-1", "hear", Value::None);
    let call = one.next_call();
    assert_eq!(call.node, "sidecar");
    // An answer to somebody else's question changes nothing.
    let mut liar = cluster.client("liar");
    liar.say(&FromClient::Answer(Answer {
        id: call.id,
        result: Ok(Value::str("lie").to_bytes().into()),
    }));
    liar.query("identity", &[]);
    one.say(&FromClient::Answer(Answer {
        id: call.id,
        result: Ok(Value::str("truth").to_bytes().into()),
    }));
    assert_eq!(sidecar.answer(id), Ok(Value::str("truth")));
}

fn said(error: Result<Value, Value>) -> String {
    match error {
        Err(Value::Str(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_to_nobody_is_answered_with_an_error() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let error = said(client.call("nobody", "echo", Value::None));
    assert!(
        error.contains("no worker or client called \"nobody\""),
        "{error}"
    );
    let error = said(client.call("sidecar", "echo", Value::None));
    assert!(error.contains("no Python side"), "{error}");
    let error = said(client.call("", "dance", Value::None));
    assert!(error.contains("does not serve \"dance\""), "{error}");
}

#[test]
fn a_question_to_a_node_that_goes_is_answered_with_an_error() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile::named("w"));
    let mut client = cluster.client("c");
    let other = cluster.client("other");
    let to_worker = client.ask("w", "sleep", Value::None);
    let to_client = client.ask("other", "sleep", Value::None);
    client.query("identity", &[]);
    cluster.swarm.kill(worker);
    let error = said(client.answer(to_worker));
    assert!(error.contains("worker sim://w is gone"), "{error}");
    drop(other);
    let error = said(client.answer(to_client));
    assert!(error.contains("client other is gone"), "{error}");
}

#[test]
fn the_identity_is_like_that_of_distributed() {
    let cluster = Cluster::new(0);
    cluster.swarm.add(Profile {
        threads: 3,
        memory: 1000,
        resources: vec![("GPU".into(), 2.0)],
        info: Value::Dict(vec![
            (Value::str("pid"), Value::Int(5)),
            (Value::str("local_directory"), Value::str("/there")),
        ]),
        ..Profile::named("w")
    });
    let mut client = cluster.client("c");
    let identity = client.query("identity", &[("n_workers", Value::Int(-1))]);
    let get = |name| identity.get(name).unwrap().clone();
    assert_eq!(get("type"), Value::str("Scheduler"));
    assert_eq!(get("address"), Value::Str(cluster.address().to_string()));
    assert_eq!(get("n_workers"), Value::Int(1));
    assert_eq!(get("total_threads"), Value::Int(3));
    assert_eq!(get("total_memory"), Value::Int(1000));
    assert_eq!(
        get("http"),
        Value::Str(format!(
            "http://{}/?token={}",
            cluster.http(),
            cluster.token()
        ))
    );
    let Value::Dict(workers) = get("workers") else {
        panic!("{identity:?}");
    };
    let (address, worker) = &workers[0];
    assert_eq!(*address, Value::str("sim://w"));
    for (name, expected) in [
        ("type", Value::str("Worker")),
        ("id", Value::str("w")),
        ("name", Value::str("w")),
        ("host", Value::str("w")),
        ("nthreads", Value::Int(3)),
        ("memory_limit", Value::Int(1000)),
        ("local_directory", Value::str("/there")),
        ("status", Value::str("running")),
        ("resources", kwargs(&[("GPU", Value::Float(2.0))])),
        ("nanny", Value::None),
    ] {
        assert_eq!(worker.get(name), Some(&expected), "{name}");
    }
    let few = client.query("identity", &[("n_workers", Value::Int(0))]);
    assert_eq!(few.get("workers"), Some(&Value::Dict(Vec::new())));
    assert_eq!(few.get("n_workers"), Some(&Value::Int(1)));
}

/// Values of known places: `x-0` … at w0, w1, … in turn.
fn spread(cluster: &Cluster, client: &mut Client, count: usize) -> Vec<String> {
    let tasks: Vec<Task> = (0..count)
        .map(|n| {
            let mut task = task(format!("x-{n}"), n as i64, &[]).large();
            task.options.workers = vec![format!("w{}", n % 2)];
            task
        })
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for key in &keys {
        assert!(matches!(client.result(key), Standing::Finished { .. }));
    }
    assert!(cluster.swarm.seen.lock().unwrap().wrong.is_empty());
    keys.into_iter().map(str::to_owned).collect()
}

#[test]
fn who_has_what() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    spread(&cluster, &mut client, 4);
    let asked = ("keys", texts(&["x-0", "x-1", "gone"]));
    let expected = Value::Dict(vec![
        (Value::str("x-0"), texts(&["sim://w0"])),
        (Value::str("x-1"), texts(&["sim://w1"])),
        (Value::str("gone"), Value::List(Vec::new())),
    ]);
    assert_eq!(client.query("who_has", &[asked]), expected);
    let bare = client.call("", "who_has", texts(&["x-0"])).unwrap();
    assert_eq!(
        bare,
        Value::Dict(vec![(Value::str("x-0"), texts(&["sim://w0"]))])
    );
    assert_eq!(
        client.query("has_what", &[("workers", texts(&["w1"]))]),
        Value::Dict(vec![(Value::str("sim://w1"), texts(&["x-1", "x-3"]))])
    );
    let nbytes = client.query("nbytes", &[("summary", Value::Bool(true))]);
    assert_eq!(nbytes, kwargs(&[("x", Value::Int(4 << 20))]));
    let nbytes = client.query("nbytes", &[("keys", texts(&["x-2"]))]);
    assert_eq!(nbytes, kwargs(&[("x-2", Value::Int(1 << 20))]));
    let progress = client.query("progress", &[]);
    assert_eq!(
        progress,
        kwargs(&[("inc", kwargs(&[("memory", Value::Int(4))]))])
    );
    let processing = client.query("processing", &[]);
    let nothing = || Value::List(Vec::new());
    assert_eq!(
        processing,
        kwargs(&[("sim://w0", nothing()), ("sim://w1", nothing())])
    );
}

#[test]
fn progress_of_keys_counts_what_they_are_computed_from() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    client.define(1, "add");
    let tasks = [
        task("a", 1, &[]).large(),
        task("b", 1, &[]).large(),
        Task {
            definitions: vec![1],
            ..task("c", 0, &["a", "b"]).large()
        },
        task("z", 1, &[]),
    ];
    client.submit(&tasks, &["a", "b", "c", "z"]);
    for key in ["a", "b", "c", "z"] {
        client.result(key);
    }
    let progress = client.query("progress", &[("keys", texts(&["c"]))]);
    let memory = |count| kwargs(&[("memory", Value::Int(count))]);
    assert_eq!(progress, kwargs(&[("inc", memory(2)), ("add", memory(1))]));
}

#[test]
fn whoever_is_told_who_has_a_value_is_told_where_that_is() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    spread(&cluster, &mut client, 2);
    let mut other = cluster.client("other");
    other.query("who_has", &[("keys", texts(&["x-1"]))]);
    // Before the answer, and once.
    let met = |client: &crate::support::Client| {
        let addresses = client.others.iter().filter_map(|message| match message {
            ToClient::Peer { address, .. } => Some(address.clone()),
            _ => None,
        });
        addresses.collect::<Vec<_>>()
    };
    assert_eq!(met(&other), ["sim://w1"]);
    other.query("who_has", &[("keys", texts(&["x-0", "x-1"]))]);
    assert_eq!(met(&other), ["sim://w1", "sim://w0"]);
}

#[test]
fn values_are_replicated_and_rebalanced() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let keys = spread(&cluster, &mut client, 2);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    client.query("replicate", &[("keys", texts(&keys)), ("n", Value::Int(2))]);
    let Value::Dict(holders) = client.query("who_has", &[("keys", texts(&keys))]) else {
        panic!();
    };
    assert!(
        holders
            .iter()
            .all(|(_, at)| matches!(at, Value::List(at) if at.len() == 2))
    );

    cluster.swarm.add(Profile::named("w2"));
    cluster.swarm.add(Profile::named("w3"));
    let tasks: Vec<Task> = (0..16)
        .map(|n| {
            let mut task = task(format!("y-{n}"), n, &[]).large();
            task.options.workers = vec!["w2".into()];
            task
        })
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for key in &keys {
        client.result(key);
    }
    let balanced = client.query("rebalance", &[("workers", texts(&["w2", "w3"]))]);
    assert_eq!(balanced, kwargs(&[("status", Value::str("OK"))]));
    for worker in ["w2", "w3"] {
        let Value::Dict(has) = client.query("has_what", &[("workers", texts(&[worker]))]) else {
            panic!();
        };
        assert!(
            matches!(&has[0].1, Value::List(keys) if keys.len() == 8),
            "{has:?}"
        );
    }
    let missing = client.query("rebalance", &[("keys", texts(&["nothing"]))]);
    assert_eq!(missing.get("status"), Some(&Value::str("partial-fail")));
    let moved = Value::Tuple(vec![
        Value::str("y-0"),
        client_holder(&mut client, "y-0"),
        Value::str("w0"),
    ]);
    client.query("move", &[("moves", Value::List(vec![moved]))]);
    assert_eq!(client_holder(&mut client, "y-0"), Value::str("sim://w0"));
}

fn client_holder(client: &mut Client, name: &str) -> Value {
    let Value::Dict(has) = client.query("who_has", &[("keys", texts(&[name]))]) else {
        panic!();
    };
    match &has[0].1 {
        Value::List(holders) => holders[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn stories_are_told_from_the_beginning() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[])], &["a"]);
    client.value("a");
    let Value::List(story) = client.query("story", &[("keys", texts(&["a"]))]) else {
        panic!();
    };
    let states: Vec<&Value> = story
        .iter()
        .map(|step| step.get("state").unwrap())
        .collect();
    assert_eq!(states.last(), Some(&&Value::str("memory")));
    assert!(states.contains(&&Value::str("assigned")), "{states:?}");
    let at = story.iter().find_map(|step| match step.get("worker") {
        Some(Value::Str(name)) => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(at, Some("w0"));
}

#[test]
fn the_stream_of_runs_is_kept_for_those_who_read_it() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    client.submit(&[task("before", 1, &[])], &["before"]);
    client.value("before");
    let first = client.query("task-events", &[]);
    assert_eq!(first.get("runs"), Some(&Value::List(Vec::new())));
    let since = first.get("next").unwrap().clone();
    client.submit(&[task("a", 1, &[]), task("b", 1, &["a"]).raises()], &["b"]);
    client.result("b");
    let events = client.query("task-events", &[("since", since)]);
    let Some(Value::List(runs)) = events.get("runs") else {
        panic!("{events:?}");
    };
    let names: Vec<(&Value, &Value, &Value, &Value)> = runs
        .iter()
        .map(|run| match run {
            Value::Tuple(run) => (&run[0], &run[1], &run[2], &run[6]),
            other => panic!("{other:?}"),
        })
        .collect();
    let (inc, w0) = (&Value::str("inc"), &Value::str("w0"));
    assert_eq!(
        names,
        [
            (&Value::str("a"), inc, w0, &Value::Bool(true)),
            (&Value::str("b"), inc, w0, &Value::Bool(false)),
        ]
    );
    client.query("task-events", &[("stop", Value::Bool(true))]);
}

#[test]
fn restarting_drops_everything_and_says_so() {
    let cluster = Cluster::new(1);
    let (mut one, mut other) = (cluster.client("one"), cluster.client("other"));
    one.submit(&[task("a", 1, &[])], &["a"]);
    one.value("a");
    other.query("restart", &[]);
    for client in [&mut one, &mut other] {
        let heard = client.wait_until("it hears", |own| {
            own.others.contains(&ToClient::Restarted).then_some(())
        });
        assert_eq!(heard, Some(()));
    }
    assert!(matches!(one.standings["a"], Standing::Cancelled(_)));
    assert_eq!(one.query("progress", &[]), Value::Dict(Vec::new()));
    one.standings.insert("a".into(), Standing::Pending);
    one.submit(&[task("a", 5, &[])], &["a"]);
    assert_eq!(one.value("a"), 5);
}

#[test]
fn what_is_fired_and_forgotten_runs_and_is_forgotten() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile {
        runs: false,
        ..Profile::named("w")
    });
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[])], &["a"]);
    let request = [
        ("client", Value::str("fire-and-forget")),
        ("keys", texts(&["a"])),
    ];
    client.query("desire", &request);
    client.release(&["a"]);
    drop(client);
    let mut other = cluster.client("other");
    cluster.swarm.run(worker, true);
    cluster
        .swarm
        .wait_for("it runs", |seen| seen.ran.values().sum::<u64>() == 1);
    other.wait_until("it is forgotten", |own| {
        let id = own.ask("", "progress", kwargs(&[]));
        (own.answer(id) == Ok(Value::Dict(Vec::new()))).then_some(())
    });
}

#[test]
fn a_client_can_end_the_scheduler() {
    let cluster = Cluster::new(1);
    let (mut one, mut other) = (cluster.client("one"), cluster.client("other"));
    one.ask("", "terminate", kwargs(&[]));
    other.wait_for_end();
    assert!(cluster.server.wait(Some(crate::support::LONG)));
    cluster.swarm.wait_for("the worker is told", |seen| {
        seen.left.iter().any(|(_, cause)| *cause == Leave::Over)
    });
}

#[test]
fn keys_of_any_kind_are_told_as_they_came() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let name = Value::Tuple(vec![Value::str("x"), Value::Int(0), Value::Float(0.5)]);
    let mut batch = client.batch(&[task("a", 1, &[]).large()], &["a"], true);
    batch.keys[0] = name.to_bytes().into();
    client.say(&FromClient::Submit(batch));
    client.standings.insert("a".into(), Standing::Pending);
    client.result("a");
    let has = client.query("who_has", &[("keys", Value::List(vec![name.clone()]))]);
    assert_eq!(has, Value::Dict(vec![(name, texts(&["sim://w0"]))]));
    assert_eq!(key("x"), Bytes::from(Value::str("x").to_bytes()));
}

/// A log that cannot say that somebody is lost.
struct Fragile;

impl std::io::Write for Fragile {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let line = str::from_utf8(line).unwrap();
        assert!(!line.contains("is lost"), "it was told to");
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn everybody_hears_of_a_scheduler_that_panicked() {
    let options = Options {
        net: crate::support::secret(),
        ..Options::default()
    };
    let subscriber = tracing_subscriber::fmt().with_writer(|| Fragile).finish();
    let start = || Server::start(options).unwrap();
    let server = tracing::subscriber::with_default(subscriber, start);
    let one = Client::connect(server.address(), "client-1", Role::Client).unwrap();
    let mut other = Client::connect(server.address(), "client-2", Role::Client).unwrap();
    // It says no goodbye, and is missed.
    drop(one);
    other.wait_for_end();
    assert!(server.wait(Some(crate::support::LONG)));
    // Later than any clock.
    assert!(server.wait(Some(Duration::MAX)));
    server.close();
}
