//! Graphs through a scheduler, over real sockets.

use treadle_messages::{FailedKind, FromClient, Standing, TaskOptions, ToClient};
use treadle_types::Value;

use crate::support::{Cluster, Task, key, task};
use crate::swarm::Profile;

#[test]
fn a_flat_graph() {
    let cluster = Cluster::new(3);
    let mut client = cluster.client("c");
    let tasks: Vec<Task> = (0..2000).map(|n| task(format!("t-{n}"), n, &[])).collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(client.value(key), number as i64);
    }
    let ran: u64 = cluster.swarm.seen.lock().unwrap().ran.values().sum();
    assert_eq!(ran, 2000);
}

#[test]
fn a_chain() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let mut tasks = vec![task("0", 0, &[])];
    for n in 1..300 {
        tasks.push(task(format!("{n}"), 1, &[&format!("{}", n - 1)]));
    }
    client.submit(&tasks, &["299"]);
    assert_eq!(client.value("299"), 299);
}

#[test]
fn a_tree_of_values_at_workers() {
    let cluster = Cluster::new(4);
    let mut client = cluster.client("c");
    let mut tasks = Vec::new();
    let mut level: Vec<String> = (0..256)
        .map(|n| {
            tasks.push(task(format!("leaf-{n}"), n, &[]).large());
            format!("leaf-{n}")
        })
        .collect();
    while level.len() > 1 {
        let mut next = Vec::new();
        for pair in level.chunks(2) {
            let name = format!("node-{}-{}", level.len(), next.len());
            let sum = task(name.clone(), 0, &[&pair[0], &pair[1]]);
            tasks.push(if level.len() > 2 { sum.large() } else { sum });
            next.push(name);
        }
        level = next;
    }
    let root = level[0].clone();
    client.submit(&tasks, &[&root]);
    assert_eq!(client.value(&root), 255 * 128);
}

#[test]
fn a_submission_in_batches_begins_before_its_end() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let mut first = client.batch(&[task("a", 1, &[]), task("b", 2, &["a"])], &["b"], false);
    // A task of the next batch reads it.
    first.readers = vec![2, 0];
    client.say(&FromClient::Submit(first));
    client.standings.insert("b".into(), Standing::Pending);
    assert_eq!(client.value("b"), 3);
    let second = client.batch(&[task("c", 10, &["a"])], &["c"], true);
    client.say(&FromClient::Submit(second));
    client.standings.insert("c".into(), Standing::Pending);
    assert_eq!(client.value("c"), 11);
}

#[test]
fn clients_share_keys_and_the_work() {
    let cluster = Cluster::new(2);
    let (mut one, mut other) = (cluster.client("one"), cluster.client("other"));
    let tasks = [task("a", 1, &[]), task("b", 2, &["a"])];
    one.submit(&tasks, &["b"]);
    assert_eq!(one.value("b"), 3);
    other.submit(&tasks, &["b"]);
    assert_eq!(other.value("b"), 3);
    other.want(&["unknown"]);
    assert_eq!(other.result("unknown"), Standing::Unknown);
    let mut third = cluster.client("third");
    third.want(&["b"]);
    assert_eq!(third.value("b"), 3);
    // What one client lets go, another still has.
    one.release(&["b"]);
    drop(other);
    third.submit(&[task("c", 10, &["b"])], &["c"]);
    assert_eq!(third.value("c"), 13);
    let ran: u64 = cluster.swarm.seen.lock().unwrap().ran.values().sum();
    assert_eq!(ran, 3);
}

#[test]
fn what_nobody_wants_is_forgotten_and_its_number_used_again() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    for round in 0..20 {
        let names: Vec<String> = (0..50).map(|n| format!("{round}-{n}")).collect();
        let tasks: Vec<Task> = names.iter().map(|name| task(name, round, &[])).collect();
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        client.submit(&tasks, &keys);
        for key in &keys {
            assert_eq!(client.value(key), round);
        }
        client.release(&keys);
    }
    // Answered after the last release was handled.
    let progress = client.query("progress", &[]);
    assert_eq!(progress, Value::Dict(Vec::new()));
}

#[test]
fn failures_name_the_task_at_fault() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let tasks = [task("bad", 7, &[]).raises(), task("after", 1, &["bad"])];
    client.submit(&tasks, &["after"]);
    let Standing::Failed(failed) = client.result("after") else {
        panic!("{:?}", client.standings);
    };
    assert_eq!(failed.key, key("bad"));
    assert_eq!(
        failed.kind,
        FailedKind::Raised(Value::Int(7).to_bytes().into())
    );
    let before: u64 = cluster.swarm.seen.lock().unwrap().ran.values().sum();
    client.standings.insert("after".into(), Standing::Pending);
    client.retry(&["after"]);
    cluster.swarm.wait_for("it runs again", |seen| {
        seen.ran.values().sum::<u64>() > before
    });
    assert!(matches!(client.result("after"), Standing::Failed(_)));
}

#[test]
fn retries_are_those_of_the_options() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let mut bad = task("bad", 7, &[]).raises();
    bad.options.retries = 4;
    client.submit(&[bad], &["bad"]);
    assert!(matches!(client.result("bad"), Standing::Failed(_)));
    assert_eq!(
        cluster.swarm.seen.lock().unwrap().ran.values().sum::<u64>(),
        5
    );
}

#[test]
fn tasks_with_effects_run_again_when_these_are_gone() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile::named("one"));
    let mut client = cluster.client("c");
    let mut transfer = task("transfer", 7, &[]);
    transfer.options.effects = true;
    client.submit(&[transfer, task("plain", 8, &[])], &["transfer", "plain"]);
    assert_eq!([client.value("transfer"), client.value("plain")], [7, 8]);
    let have_run = |count| {
        let ran = move |seen: &crate::swarm::Seen| seen.ran.values().sum::<u64>() == count;
        cluster.swarm.wait_for("the transfer runs again", ran);
    };
    let keys = Value::List(vec![Value::str("transfer"), Value::str("plain")]);
    client.query("invalidate", &[("keys", keys)]);
    have_run(3);
    cluster.swarm.kill(worker);
    cluster.swarm.add(Profile::named("another"));
    have_run(4);
    assert_eq!([client.value("transfer"), client.value("plain")], [7, 8]);
}

#[test]
fn restrictions_and_resources_have_names() {
    let cluster = Cluster::new(2);
    let gpu = cluster.swarm.add(Profile {
        resources: vec![("GPU".into(), 1.0)],
        ..Profile::named("with-gpu")
    });
    let mut client = cluster.client("c");
    let tasks: Vec<Task> = (0..20)
        .map(|n| {
            let mut task = task(format!("{n}"), n, &[]);
            task.options = if n % 2 == 0 {
                TaskOptions {
                    resources: vec![("GPU".into(), 1.0)],
                    ..TaskOptions::default()
                }
            } else {
                TaskOptions {
                    workers: vec!["sim://with-gpu".into()],
                    ..TaskOptions::default()
                }
            };
            task
        })
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(client.value(key), n as i64);
    }
    assert_eq!(cluster.swarm.seen.lock().unwrap().ran[&gpu], 20);
}

#[test]
fn cancelled_tasks_say_why_and_can_be_submitted_again() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile {
        runs: false,
        ..Profile::named("slow")
    });
    let (mut one, mut other) = (cluster.client("one"), cluster.client("other"));
    one.submit(&[task("a", 1, &[])], &["a"]);
    let nowhere = Value::Dict(vec![(Value::str("a"), Value::List(Vec::new()))]);
    let keys = ("keys", Value::List(vec![Value::str("a")]));
    assert_eq!(one.query("who_has", std::slice::from_ref(&keys)), nowhere);
    other.want(&["a"]);
    assert_eq!(other.query("who_has", &[keys]), nowhere);
    one.cancel(&["a"], true);
    for client in [&mut one, &mut other] {
        let Standing::Cancelled(reason) = client.result("a") else {
            panic!("{:?}", client.standings);
        };
        let expected = Value::Tuple(vec![Value::str("why"), Value::str("because")]);
        assert_eq!(Value::from_bytes(&reason), Ok(expected));
    }
    // The client has a future of the key, so it has an id for it, which means nothing here any more.
    one.standings.insert("a".into(), Standing::Pending);
    one.submit(&[task("a", 2, &[])], &["a"]);
    cluster.swarm.run(worker, true);
    assert_eq!(one.value("a"), 2);
}

#[test]
fn a_task_that_reads_what_is_gone_is_cancelled() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    client.want(&["never"]);
    assert_eq!(client.result("never"), Standing::Unknown);
    let tasks = [
        task("a", 1, &["never"]),
        task("b", 1, &["a"]),
        task("c", 5, &[]),
    ];
    client.submit(&tasks, &["b", "c"]);
    assert!(matches!(client.result("b"), Standing::Cancelled(_)));
    assert_eq!(client.value("c"), 5);
}

#[test]
fn small_values_are_put_at_the_scheduler() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    client.put("x", 41, true, 1);
    assert_eq!(client.value("x"), 41);
    client.submit(&[task("y", 1, &["x"])], &["y"]);
    assert_eq!(client.value("y"), 42);
}

#[test]
fn large_values_are_placed_at_workers_in_turn() {
    let cluster = Cluster::new(4);
    let mut client = cluster.client("c");
    let mut places = Vec::new();
    for n in 0..8 {
        let id = client.put(&format!("x{n}"), n, false, 1);
        let workers = client.wait_until("a place", |own| {
            own.others.iter().find_map(|message| match message {
                ToClient::Place {
                    id: of, workers, ..
                } if *of == id => Some(workers.clone()),
                _ => None,
            })
        });
        let workers = workers.unwrap();
        assert_eq!(workers.len(), 1);
        let place = workers.first().unwrap();
        assert!(client.others.iter().any(
            |message| matches!(message, ToClient::Peer { worker, .. } if u64::from(worker.0) == place)
        ));
        places.push(place);
    }
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 4);
}

#[test]
fn definitions_go_once_to_each_worker_and_end_with_their_client() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    client.define(1, "other");
    let tasks: Vec<Task> = (0..100)
        .map(|n| Task {
            definitions: if n % 2 == 0 { vec![1] } else { vec![1, 0] },
            ..task(format!("{n}"), n, &[])
        })
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for key in &keys {
        client.value(key);
    }
    let mut heir = cluster.client("heir");
    heir.want(&["0"]);
    heir.value("0");
    let id = client.id;
    drop(client);
    // The task of the client that is gone could have to be run again.
    cluster
        .swarm
        .wait_for("nothing", |seen| seen.undefined.is_empty());
    heir.release(&["0"]);
    cluster.swarm.wait_for("both forget", |seen| {
        seen.undefined
            .iter()
            .filter(|(_, client)| *client == id)
            .count()
            == 2
    });
    let seen = cluster.swarm.seen.lock().unwrap();
    let mut defined = seen.defined.clone();
    let count = defined.len();
    defined.sort_unstable();
    defined.dedup();
    assert_eq!(defined.len(), count);
}

#[test]
fn definitions_that_no_task_uses_go_when_there_are_many() {
    const MANY: u32 = 1200;
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let call = |number: u32| Task {
        definitions: vec![number, 0],
        ..task(format!("t-{number}"), i64::from(number), &[])
    };
    // Clients of these tests have defined 0, and use it all the time.
    let all: Vec<Task> = (1..=MANY).map(call).collect();
    let keys: Vec<&str> = all.iter().map(|task| task.key.as_str()).collect();
    for (number, task) in (1..).zip(&all) {
        client.define(number, &format!("f-{number}"));
        client.submit(std::slice::from_ref(task), &[&task.key]);
    }
    for key in &keys {
        client.value(key);
    }
    // The last two are used, whatever the client says.
    let (rest, used) = keys.split_at(keys.len() - 2);
    client.release(rest);
    let numbers = client.wait_until("it is asked", |own| {
        own.others.iter().find_map(|message| match message {
            ToClient::Unused(numbers) => Some(numbers.clone()),
            _ => None,
        })
    });
    let mut numbers = numbers.unwrap();
    assert!(numbers.iter().all(|number| (1..=MANY - 2).contains(number)));
    assert!(
        numbers.len() > 100,
        "{} of {MANY} are too many",
        numbers.len()
    );
    // One is used again before the client is asked, for all that the scheduler knows.
    let again = numbers[0];
    let task = call(again);
    client.submit(std::slice::from_ref(&task), &[&task.key]);
    client.value(&task.key);
    numbers.push(MANY);
    client.say(&FromClient::Undefine(numbers.clone()));
    let is_withdrawn = |number: u32| {
        move |seen: &crate::swarm::Seen| seen.withdrawn.iter().any(|(.., other)| *other == number)
    };
    cluster.swarm.wait_for("one goes", is_withdrawn(numbers[1]));
    {
        let seen = cluster.swarm.seen.lock().unwrap();
        assert!(!is_withdrawn(again)(&seen) && !is_withdrawn(MANY)(&seen));
    }
    client.release(&[&task.key]);
    client.release(used);
    cluster.swarm.wait_for("that one goes", is_withdrawn(again));
    cluster
        .swarm
        .wait_for("the last one goes", is_withdrawn(MANY));
    // Its place is another's, which workers hear of.
    client.define(MANY + 1, "f-new");
    let task = call(MANY + 1);
    client.submit(std::slice::from_ref(&task), &[&task.key]);
    assert_eq!(client.value(&task.key), i64::from(MANY) + 1);
}

#[test]
fn a_large_recipe_travels_like_a_small_one() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let mut batch = client.batch(
        &[
            task("a", 1, &[]),
            task("b", 2, &[]),
            task("c", 3, &["a", "b"]),
        ],
        &["c"],
        true,
    );
    let mut long = batch.recipes[1].to_vec();
    long.resize(long.len() + (3 << 20), 0);
    batch.recipes[1] = long.into();
    client.say(&FromClient::Submit(batch));
    client.standings.insert("c".into(), Standing::Pending);
    assert_eq!(client.value("c"), 6);
}
