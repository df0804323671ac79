//! Workers that come, leave and are lost.

use std::time::Duration;

use treadle_broadcast::Settled;
use treadle_messages::{FailedKind, FromClient, FromWorker, Leave, Role, Standing, ToClient};
use treadle_types::{Cause, ClientId, Value, WorkerId};

use crate::support::{Client, Cluster, Task, kwargs, task, texts};
use crate::swarm::Profile;

fn stopped(name: &str) -> Profile {
    Profile {
        runs: false,
        ..Profile::named(name)
    }
}

#[test]
fn values_of_a_lost_worker_are_computed_again() {
    let cluster = Cluster::new(3);
    let mut client = cluster.client("c");
    let mut tasks: Vec<Task> = (0..60)
        .map(|n| task(format!("{n}"), n, &[]).large())
        .collect();
    for n in 60..120 {
        tasks.push(task(format!("{n}"), 1000, &[&format!("{}", n - 60)]).large());
    }
    let keys: Vec<String> = tasks.iter().map(|task| task.key.clone()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    client.submit(&tasks, &keys[60..]);
    for key in &keys[60..] {
        assert!(matches!(client.result(key), Standing::Finished { .. }));
    }
    let workers: Vec<_> = {
        let seen = cluster.swarm.seen.lock().unwrap();
        seen.ran.keys().copied().collect()
    };
    cluster.swarm.kill(workers[0]);
    let mut sums = Vec::new();
    for n in 60..120 {
        sums.push(task(format!("sum-{n}"), 0, &[&format!("{n}")]));
    }
    let names: Vec<String> = sums.iter().map(|task| task.key.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    client.submit(&sums, &names);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(client.value(name), 1000 + n as i64, "{name}");
    }
    cluster.wait_for_log("it is unreachable");
}

/// A task fails once its workers were lost too often, and says how.
fn losses(client: &mut Client) -> Vec<(String, Cause, String)> {
    let Standing::Failed(failed) = client.result("a") else {
        panic!("{:?}", client.standings);
    };
    let FailedKind::WorkersLost(lost) = failed.kind else {
        panic!("{:?}", failed.kind);
    };
    assert!(lost.iter().all(|lost| lost.address.starts_with("sim://")));
    lost.into_iter()
        .map(|lost| (lost.name, lost.cause, lost.log))
        .collect()
}

#[test]
fn deaths_are_named_by_those_who_die() {
    let cluster = Cluster::with(0, |options| options.scheduler.allowed_losses = 0);
    let worker = cluster.swarm.add(stopped("w"));
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[])], &["a"]);
    client.query("processing", &[]);
    cluster.swarm.say(worker, started(&mut client));
    cluster
        .swarm
        .leave(worker, Cause::Exited(3), "the last line");
    assert_eq!(
        losses(&mut client),
        [("w".to_owned(), Cause::Exited(3), "the last line".to_owned())]
    );
}

/// The report that the task runs; before that, a loss is not its fault.
fn started(client: &mut Client) -> treadle_messages::FromWorker {
    client.take();
    treadle_messages::FromWorker::Report(treadle_types::Report::Started(
        treadle_types::ObjectId::new(treadle_types::TaskId(0), treadle_types::Attempt(1)),
    ))
}

#[test]
fn deaths_are_named_by_those_who_started_the_dead() {
    let cluster = Cluster::with(0, |options| options.scheduler.allowed_losses = 0);
    let info = Value::Dict(vec![(Value::str("pid"), Value::Int(77))]);
    let worker = cluster.swarm.add(Profile {
        info,
        ..stopped("w")
    });
    let mut client = cluster.client("c");
    let mut supervisor = cluster.client("supervisor");
    supervisor.query("supervise", &[("names", texts(&["w"]))]);
    client.submit(&[task("a", 1, &[])], &["a"]);
    client.query("processing", &[]);
    cluster.swarm.say(worker, started(&mut client));
    cluster.swarm.kill(worker);
    let exit = |pid, signal| {
        [
            ("name", Value::str("w")),
            ("pid", Value::Int(pid)),
            ("signal", Value::Int(signal)),
            ("exitcode", Value::None),
            ("log", Value::str("Killed")),
        ]
    };
    // Of a process that had the name before.
    let known = |is_known| Value::Dict(vec![(Value::str("known"), Value::Bool(is_known))]);
    assert_eq!(
        supervisor.query("worker-exited", &exit(76, 15)),
        known(false)
    );
    supervisor.query("worker-exited", &exit(77, 9));
    let losses = losses(&mut client);
    assert_eq!(losses.len(), 1);
    // The supervisor has 200 ms, which a loaded machine may take from it.
    if losses[0].1 != Cause::Unreachable {
        assert_eq!(
            losses[0],
            ("w".to_owned(), Cause::Signal(9), "Killed".to_owned())
        );
    }
}

#[test]
fn out_of_memory_has_a_name_of_its_own() {
    let cluster = Cluster::with(0, |options| options.scheduler.allowed_losses = 0);
    let worker = cluster.swarm.add(stopped("w"));
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[])], &["a"]);
    client.query("processing", &[]);
    cluster.swarm.say(worker, started(&mut client));
    client.query("identity", &[]);
    // Before the connection is seen to break.
    let exited = [
        ("name", Value::str("w")),
        ("signal", Value::Int(9)),
        ("oom", Value::Bool(true)),
    ];
    client.query("worker-exited", &exited);
    assert_eq!(
        losses(&mut client),
        [("w".to_owned(), Cause::OutOfMemory, String::new())]
    );
}

#[test]
fn a_worker_that_says_nothing_is_lost() {
    let cluster = Cluster::with(0, |options| {
        options.worker_timeout = Duration::from_secs(5);
    });
    cluster.swarm.add(Profile {
        breathes: false,
        ..stopped("silent")
    });
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[])], &["a"]);
    cluster.wait_for_log("worker silent at sim://silent is lost: it is unreachable");
    cluster.swarm.add(Profile::named("other"));
    assert_eq!(client.value("a"), 1);
}

#[test]
fn a_worker_that_breathes_is_not_lost() {
    let cluster = Cluster::with(0, |options| {
        options.worker_timeout = Duration::from_secs(4);
    });
    cluster.swarm.add(stopped("breathing"));
    let lost = cluster.swarm.add(Profile {
        breathes: false,
        ..stopped("silent")
    });
    cluster.wait_for_log("worker silent");
    let mut client = cluster.client("c");
    let ncores = client.query("ncores", &[]);
    let expected = Value::Dict(vec![(Value::str("sim://breathing"), Value::Int(1))]);
    assert_eq!(ncores, expected, "{lost:?}");
}

#[test]
fn a_drained_worker_leaves_when_its_values_are_elsewhere() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let tasks: Vec<Task> = (0..40)
        .map(|n| task(format!("{n}"), n, &[]).large())
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for key in &keys {
        client.result(key);
    }
    let workers: Vec<_> = {
        let seen = cluster.swarm.seen.lock().unwrap();
        seen.ran.keys().copied().collect()
    };
    let before: u64 = cluster.swarm.seen.lock().unwrap().ran.values().sum();
    cluster.swarm.drain(workers[0]);
    cluster.swarm.wait_for("it leaves", |seen| {
        seen.left
            .iter()
            .any(|left| *left == (workers[0], Leave::Drained))
    });
    let sums: Vec<Task> = keys
        .iter()
        .map(|key| task(format!("s{key}"), 0, &[key]))
        .collect();
    let names: Vec<&str> = sums.iter().map(|task| task.key.as_str()).collect();
    client.submit(&sums, &names);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(client.value(name), n as i64);
    }
    let after: u64 = cluster.swarm.seen.lock().unwrap().ran.values().sum();
    assert_eq!(after, before + 40, "nothing was computed again");
}

#[test]
fn workers_retire_when_they_are_told_to() {
    let cluster = Cluster::new(3);
    let mut client = cluster.client("c");
    let retired = client.query("retire_workers", &[("workers", texts(&["w1", "sim://w2"]))]);
    let Value::Dict(entries) = retired else {
        panic!("{retired:?}");
    };
    let addresses: Vec<&Value> = entries.iter().map(|(address, _)| address).collect();
    assert_eq!(
        addresses,
        [&Value::str("sim://w1"), &Value::str("sim://w2")]
    );
    assert_eq!(entries[0].1.get("name"), Some(&Value::str("w1")));
    let ncores = client.query("ncores", &[]);
    assert_eq!(
        ncores,
        Value::Dict(vec![(Value::str("sim://w0"), Value::Int(1))])
    );
    cluster
        .swarm
        .wait_for("both leave", |seen| seen.left.len() == 2);
}

#[test]
fn a_worker_can_be_closed() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let closed = client.query("close_worker", &[("worker", Value::str("w0"))]);
    assert_eq!(closed, Value::Int(1));
    cluster
        .swarm
        .wait_for("it leaves", |seen| seen.left.len() == 1);
}

#[test]
fn names_of_workers_are_unique_as_long_as_they_live() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile::named("twin"));
    let refused = cluster.swarm.try_add(Profile::named("twin")).unwrap_err();
    assert!(
        refused.contains("called \"twin\" is connected already"),
        "{refused}"
    );
    cluster.swarm.kill(worker);
    cluster.wait_for_log("worker twin");
    assert_ne!(cluster.swarm.add(Profile::named("twin")), worker);
}

#[test]
fn who_knows_a_worker_hears_of_its_end() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    let tasks: Vec<Task> = (0..40)
        .map(|n| task(format!("{n}"), n, &[]).large())
        .collect();
    let keys: Vec<&str> = tasks.iter().map(|task| task.key.as_str()).collect();
    client.submit(&tasks, &keys);
    for key in &keys {
        client.result(key);
    }
    // Reads values of both.
    client.submit(&[task("sum", 0, &keys)], &["sum"]);
    assert_eq!(client.value("sum"), 39 * 20);
    let (reader, other) = {
        let seen = cluster.swarm.seen.lock().unwrap();
        seen.peers[0]
    };
    cluster.swarm.kill(other);
    cluster.swarm.wait_for("the other worker hears", |seen| {
        seen.lost.contains(&(reader, other))
    });
    let heard = client.wait_until("the client hears", |own| {
        own.others
            .contains(&ToClient::PeerLost(other))
            .then_some(())
    });
    assert_eq!(heard, Some(()));
}

/// The workers that a client was told of, in order, each with its name.
fn joined(client: &Client) -> Vec<(WorkerId, String)> {
    let members = client.others.iter().filter_map(|message| match message {
        ToClient::Joined(members) => Some(members),
        _ => None,
    });
    let members = members.flatten();
    members
        .map(|member| (member.worker, member.name.clone()))
        .collect()
}

#[test]
fn a_client_that_asks_is_told_who_is_there() {
    let cluster = Cluster::new(3);
    let mut client = cluster.client("c");
    client.say(&FromClient::Members);
    // Asking again says nothing new.
    client.say(&FromClient::Members);
    let told = |count| move |own: &mut Client| (joined(own).len() == count).then_some(());
    client.wait_until("all are named", told(3));
    let late = cluster.swarm.add(Profile::named("late"));
    client.wait_until("who joins is named", told(4));
    assert_eq!(joined(&client)[3], (late, "late".to_owned()));
    let others = |message: &&ToClient| matches!(message, ToClient::Joined(_));
    assert_eq!(client.others.iter().filter(others).count(), 2);

    let (gone, _) = joined(&client)[0];
    cluster.swarm.leave(gone, Cause::Signal(9), "");
    client.wait_until("who is gone is named", |own| {
        let lost = own.others.contains(&ToClient::PeerLost(gone));
        lost.then_some(())
    });
    let left = ToClient::Left {
        worker: gone,
        cause: Cause::Signal(9),
    };
    let position = |message| client.others.iter().position(|other| *other == message);
    assert!(position(left) < position(ToClient::PeerLost(gone)));
    // Workers, too, though they never had to do with it.
    cluster.swarm.wait_for("workers hear", |seen| {
        let heard = seen.lost.iter().filter(|(_, whom)| *whom == gone);
        heard.count() == 3
    });
}

#[test]
fn a_worker_learns_what_is_settled_and_whose_casts_are_over() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("c");
    client.say(&FromClient::Members);
    client.wait_until("all are named", |own| {
        (joined(own).len() == 2).then_some(())
    });
    let (worker, _) = joined(&client)[0];
    let id = client.id;
    cluster.swarm.say(worker, FromWorker::AskSettled(id));
    client.wait_until("the client is asked", |own| {
        let asked = own.others.contains(&ToClient::SettledAsked(worker));
        asked.then_some(())
    });
    let settled = Settled([1, 2, 3, 7].into_iter().collect());
    client.say(&FromClient::SettledTold {
        worker,
        settled: settled.clone(),
    });
    cluster.swarm.wait_for("the worker is told", |seen| {
        seen.settled.contains(&(worker, id, settled.clone()))
    });
    // Of one that is not there, it is told at once.
    let nobody = ClientId(12_345);
    cluster.swarm.say(worker, FromWorker::AskSettled(nobody));
    cluster.swarm.wait_for("the worker is told", |seen| {
        seen.over.contains(&(worker, nobody))
    });
    drop(client);
    cluster.swarm.wait_for("all workers are told", |seen| {
        let over = seen.over.iter().filter(|(_, whose)| *whose == id);
        over.count() == 2
    });
}

#[test]
fn python_versions_must_be_the_same() {
    let cluster = Cluster::new(1);
    let refused = cluster.swarm.try_add(Profile {
        python: "3.12".into(),
        ..Profile::named("new")
    });
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("worker \"new\" runs Python 3.12"),
        "{refused}"
    );
    assert!(refused.contains("this cluster Python 3.11"), "{refused}");
}

#[test]
fn the_sidecar_hears_who_comes_and_goes() {
    let cluster = Cluster::new(0);
    let mut sidecar = Client::connect(cluster.address(), "sidecar-1", Role::Sidecar).unwrap();
    let second = Client::connect(cluster.address(), "sidecar-2", Role::Sidecar)
        .err()
        .unwrap();
    assert!(
        second.to_string().contains("has a Python side already"),
        "{second}"
    );
    let worker = cluster.swarm.add(Profile::named("w"));
    let call = sidecar.next_call();
    assert_eq!(
        (call.node.as_str(), call.operation.as_str()),
        ("", "worker-joined")
    );
    let about = kwargs(&[
        ("address", Value::str("sim://w")),
        ("name", Value::str("w")),
    ]);
    assert_eq!(Value::from_bytes(&call.argument), Ok(about));
    let client = cluster.client("c");
    assert_eq!(sidecar.next_call().operation, "client-joined");
    drop(client);
    assert_eq!(sidecar.next_call().operation, "client-left");
    cluster.swarm.leave(worker, Cause::Exited(0), "");
    let call = sidecar.next_call();
    assert_eq!(call.operation, "worker-lost");
    let argument = Value::from_bytes(&call.argument).unwrap();
    assert_eq!(
        argument.get("cause"),
        Some(&Value::str("it exited with code 0"))
    );
}
