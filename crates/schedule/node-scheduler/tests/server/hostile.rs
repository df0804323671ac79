//! What must not be said, many connections, pages, and ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Batch, Call, Definition, FromClient, FromWorker, Role, ToClient, Welcome};
use treadle_net::{Address, Peer};
use treadle_schedule_wire::{
    Encoder, HELLO, MESSAGES, Message, PROTOCOL, decode_welcome, encode_hello_of, introduce,
};
use treadle_types::{Attempt, Cause, ClientId, ObjectId, Report, TaskId, Value};

use crate::support::{Client, Cluster, connect, hello, kwargs, secret, task, wait_long};
use crate::swarm::{Profile, Swarm};

/// Others are served as before.
fn is_well(client: &mut Client, name: &str) {
    client.submit(&[task(name, 1, &[])], &[name]);
    assert_eq!(client.value(name), 1);
}

fn packets<M: Message>(messages: &[M]) -> Vec<Bytes> {
    let mut encoder = Encoder::default();
    for message in messages {
        encoder.push(message);
    }
    std::iter::from_fn(|| encoder.take())
        .map(Bytes::from)
        .collect()
}

/// Waits until the other side has closed.
fn closed(peer: &Peer) {
    let ended = wait_long(|wait| {
        loop {
            match peer.next(wait) {
                Ok(incoming) => {
                    incoming.accept(Vec::new())?;
                    incoming.wait(wait)?;
                    incoming.take()?;
                }
                Err(error) => return Err::<(), _>(error),
            }
        }
    });
    assert!(peer.ended().is_some(), "{ended:?}");
}

#[test]
fn a_client_that_breaks_the_protocol_is_thrown_out_and_others_are_not() {
    let cluster = Cluster::new(1);
    let mut witness = cluster.client("witness");
    let unknown = |ids: Vec<u32>| packets(&[FromClient::Retry(ids)]);
    let undefined = Batch {
        last: true,
        first: 0,
        keys: vec![crate::support::key("k")],
        tasks: vec![0],
        offsets: vec![0, 0],
        readers: vec![0],
        ranks: vec![0],
        definition_offsets: vec![0, 1],
        definitions: vec![9],
        recipes: vec![Bytes::new()],
        options: vec![0],
        ..Batch::default()
    };
    let cycle = Batch {
        definition_offsets: vec![0, 0],
        definitions: Vec::new(),
        offsets: vec![0, 1],
        inputs: vec![0],
        ..undefined.clone()
    };
    let options = Batch {
        definition_offsets: vec![0, 0],
        definitions: Vec::new(),
        options: vec![7],
        ..undefined.clone()
    };
    let again = FromClient::Want {
        first: 0,
        keys: vec![crate::support::key("k")],
    };
    let definition = FromClient::Define(Definition {
        client: ClientId(0),
        number: 1,
        name: "f".into(),
        pickle: Bytes::new(),
    });
    let attacks: Vec<(&str, u32, Vec<Bytes>)> = vec![
        (
            "garbage",
            MESSAGES,
            vec![Bytes::from_static(b"\xff\xff\xffgarbage")],
        ),
        ("another kind", 99, vec![Bytes::from_static(b"x")]),
        ("another direction", MESSAGES, packets(&[FromWorker::Drain])),
        ("an id without a key", MESSAGES, unknown(vec![4])),
        (
            "an undefined function",
            MESSAGES,
            packets(&[FromClient::Submit(undefined)]),
        ),
        ("a cycle", MESSAGES, packets(&[FromClient::Submit(cycle)])),
        (
            "unknown options",
            MESSAGES,
            packets(&[FromClient::Submit(options)]),
        ),
        ("an id twice", MESSAGES, packets(&[again.clone(), again])),
        (
            "a definition twice",
            MESSAGES,
            packets(&[definition.clone(), definition]),
        ),
        ("a second hello", HELLO, vec![Bytes::from_static(b"hello")]),
    ];
    for (number, (what, kind, packets)) in attacks.into_iter().enumerate() {
        let peer = connect(cluster.address()).unwrap();
        let name = format!("attacker-{number}");
        wait_long(|wait| introduce(&peer, &hello(&name, Role::Client), wait)).unwrap();
        for packet in packets {
            peer.send(kind, &[packet]).unwrap();
        }
        closed(&peer);
        cluster.wait_for_log(&format!("client {name} is thrown out"));
        is_well(&mut witness, what);
    }
    assert_eq!(
        witness.query("progress", &[]),
        kwargs(&[("inc", kwargs(&[("memory", Value::Int(10))]))]),
        "nothing of the attackers is left"
    );
}

#[test]
fn a_worker_that_breaks_the_protocol_is_thrown_out() {
    let cluster = Cluster::new(1);
    let mut witness = cluster.client("witness");
    let peer = connect(cluster.address()).unwrap();
    let role = Role::Worker {
        address: "sim://evil".into(),
        host: String::new(),
        threads: 1,
        memory: 0,
        resources: Vec::new(),
    };
    wait_long(|wait| introduce(&peer, &hello("evil", role), wait)).unwrap();
    let never = ObjectId::new(TaskId(1 << 30), Attempt(7));
    let strange = FromWorker::Report(Report::Started(never));
    for packet in packets(&[strange]) {
        peer.send(MESSAGES, &[packet]).unwrap();
    }
    peer.send(MESSAGES, &[Bytes::from_static(b"\x0a\xff")])
        .unwrap();
    closed(&peer);
    cluster.wait_for_log("worker evil");
    is_well(&mut witness, "a");
}

#[test]
fn first_words_must_be_a_hello_of_this_protocol() {
    let cluster = Cluster::new(1);
    let mut witness = cluster.client("witness");
    let rude = connect(cluster.address()).unwrap();
    rude.send(MESSAGES, &[Bytes::from_static(b"me")]).unwrap();
    closed(&rude);
    let endless = connect(cluster.address()).unwrap();
    endless.send(HELLO, &[vec![0; 1 << 20].into()]).unwrap();
    closed(&endless);
    let old = connect(cluster.address()).unwrap();
    let words = encode_hello_of(PROTOCOL + 1, &hello("old", Role::Client));
    old.send(HELLO, &[words.into()]).unwrap();
    let welcome = wait_long(|wait| {
        let incoming = old.next(wait)?;
        incoming.accept(Vec::new())?;
        incoming.wait(wait)?;
        incoming.take()
    });
    let welcome = decode_welcome(welcome.unwrap().frames[0].as_slice()).unwrap();
    let Welcome::Refused(reason) = welcome else {
        panic!("{welcome:?}");
    };
    assert!(
        reason.contains("install the same version of Treadle"),
        "{reason}"
    );
    let twin = Client::connect(cluster.address(), "witness", Role::Client)
        .err()
        .unwrap();
    assert!(twin.to_string().contains("is connected already"), "{twin}");
    is_well(&mut witness, "a");
}

#[test]
fn a_message_that_is_too_long_ends_its_connection_only() {
    let cluster = Cluster::with(1, |options| options.largest_message = 1 << 20);
    let (mut witness, mut long) = (cluster.client("witness"), cluster.client("long"));
    long.say(&FromClient::Call(Call {
        id: 1,
        node: String::new(),
        operation: "identity".into(),
        argument: Value::Bytes(vec![0; 2 << 20]).to_bytes().into(),
    }));
    long.wait_for_end();
    cluster.wait_for_log("scatter large values");
    is_well(&mut witness, "a");
}

#[test]
fn a_client_that_does_not_read_stops_nobody() {
    let cluster = Cluster::new(1);
    let mut witness = cluster.client("witness");
    let mut deaf = cluster.client("deaf");
    // 64 MB of answers that it does not take.
    let argument = Value::Bytes(vec![7; 60_000]);
    for _ in 0..1000 {
        deaf.ask("w0", "echo", argument.clone());
    }
    for n in 0..20 {
        is_well(&mut witness, &format!("{n}"));
    }
    // It gets them once it reads.
    for id in 1..=1000 {
        assert!(deaf.answer(id).is_ok());
    }
}

#[test]
fn what_is_kept_for_a_client_that_does_not_read_is_bounded() {
    let cluster = Cluster::with(1, |options| options.largest_message = 1 << 20);
    let (mut witness, mut deaf) = (cluster.client("witness"), cluster.client("deaf"));
    for _ in 0..10 {
        deaf.ask("w0", "echo", Value::Bytes(vec![7; 500_000]));
        deaf.ask("witness", "knock", Value::None);
        let knocked = witness.wait_until("a knock", |own| {
            let is_it = |message: &ToClient| matches!(message, ToClient::Call(_));
            let place = own.others.iter().position(is_it)?;
            own.others.remove(place)
        });
        assert!(knocked.is_some());
        // What was answered before has been passed on, or not.
        let id = witness.ask("w0", "echo", Value::None);
        assert!(witness.answer(id).is_ok());
    }
    let answers: Vec<_> = (0..10).map(|n| deaf.answer(2 * n + 1)).collect();
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    // One MiB has come to it unasked.
    assert!((2..=6).contains(&taken), "{taken}");
    let dropped = format!("{:?}", answers.last());
    assert!(
        dropped.contains("it has not read those before"),
        "{dropped}"
    );
    is_well(&mut deaf, "a");
}

#[test]
fn two_hundred_clients_come_and_go() {
    let cluster = Cluster::new(2);
    let mut witness = cluster.client("witness");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cluster = &cluster;
            scope.spawn(move || {
                for number in 0..50 {
                    let mut client = cluster.client(&format!("{thread}-{number}"));
                    let own = format!("own-{thread}-{number}");
                    client.submit(
                        &[task("shared", 1, &[]), task(&own, 2, &["shared"])],
                        &[&own],
                    );
                    if number % 3 != 0 {
                        assert_eq!(client.value(&own), 3);
                    }
                }
            });
        }
    });
    is_well(&mut witness, "a");
    // What they wanted went with them.
    witness.wait_until("all is forgotten", |own| {
        let progress = own.query("progress", &[]);
        let identity = own.query("identity", &[]);
        let expected = kwargs(&[("inc", kwargs(&[("memory", Value::Int(1))]))]);
        let alone = identity.get("n_clients") == Some(&Value::Int(1));
        (progress == expected && alone).then_some(())
    });
}

#[test]
fn a_client_that_dies_takes_its_tasks_along() {
    let cluster = Cluster::new(0);
    let worker = cluster.swarm.add(Profile {
        runs: false,
        ..Profile::named("w")
    });
    let mut client = cluster.client("c");
    client.submit(&[task("a", 1, &[]), task("b", 1, &["a"])], &["b"]);
    client.query("identity", &[]);
    drop(client);
    let mut other = cluster.client("other");
    other.wait_until("all is forgotten", |own| {
        let progress = own.query("progress", &[]);
        (progress == Value::Dict(Vec::new())).then_some(())
    });
    cluster.swarm.run(worker, true);
    is_well(&mut other, "c");
    assert_eq!(cluster.swarm.seen.lock().unwrap().ran[&worker], 1);
}

fn get(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, body.to_owned())
}

#[test]
fn pages_show_the_cluster() {
    let cluster = Cluster::new(2);
    let mut client = cluster.client("cli\"ent");
    client.submit(&[task("a", 1, &[]), task("b", 1, &["a"])], &["a", "b"]);
    client.value("b");
    let page = |path: &str| {
        get(
            cluster.http(),
            &format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
                cluster.token()
            ),
        )
    };
    assert_eq!(page("/health"), ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    let (status, metrics) = page("/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "treadle_tasks{state=\"memory\"} 2",
        "treadle_workers{status=\"running\"} 2",
        "treadle_threads 2",
        "treadle_clients 1",
        "treadle_tasks_submitted_total 2",
        "# TYPE treadle_scheduler_cpu_seconds_total counter",
        "treadle_function_seconds{function=\"inc\"} ",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let (_, state) = page("/json/state?x=1");
    assert!(state.starts_with('{') && state.ends_with('}'), "{state}");
    assert!(state.contains("\"memory\":2"), "{state}");
    assert!(state.contains("\"clients\":[\"cli\\\"ent\"]"), "{state}");
    assert!(state.contains("\"sim://w1\":{\"name\":\"w1\""), "{state}");
    assert_eq!(page("/nothing").0, "HTTP/1.1 404 Not Found");
    let post = "POST /health HTTP/1.1\r\n\r\n";
    assert_eq!(
        get(cluster.http(), post).0,
        "HTTP/1.1 405 Method Not Allowed"
    );
    assert_eq!(
        get(cluster.http(), "\x00\x01\r\n\r\n").0,
        "HTTP/1.1 400 Bad Request"
    );
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(10_000));
    assert!(get(cluster.http(), &long).0.contains("431"));
    // Of a head there is no body.
    let head = format!(
        "HEAD /metrics?token={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        cluster.token()
    );
    let (status, body) = get(cluster.http(), &head);
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", ""));
}

#[test]
fn pages_are_for_who_has_the_token_and_asks_by_a_name_of_the_server() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("a client of a name");
    client.submit(&[task("a", 1, &[])], &["a"]);
    client.value("a");
    let ask = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        get(cluster.http(), &request)
    };
    for path in [
        "/",
        "/status",
        "/metrics",
        "/json/state",
        "/json/state?token=0",
    ] {
        let (status, body) = ask(path, "localhost");
        assert_eq!(status, "HTTP/1.1 401 Unauthorized", "{path}");
        assert!(
            !body.contains("name") && !body.contains(cluster.token()),
            "{body}"
        );
    }
    let opened = format!("/json/state?token={}", cluster.token());
    assert!(ask(&opened, "127.0.0.1").1.contains("a client of a name"));
    assert_eq!(ask(&opened, "evil.example").0, "HTTP/1.1 403 Forbidden");
    let nobody = format!("GET {opened} HTTP/1.1\r\n\r\n");
    assert_eq!(get(cluster.http(), &nobody).0, "HTTP/1.1 400 Bad Request");
}

#[test]
fn who_reads_or_speaks_slowly_is_cut_off() {
    let cluster = Cluster::new(1);
    let ask = format!(
        "GET /metrics?token={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        cluster.token()
    );
    let address = cluster.http();
    // One says its request byte by byte, one goes on after its answer: neither comes to an end.
    std::thread::scope(|scope| {
        for said in ["", ask.as_str()] {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(said.as_bytes()).unwrap();
                let until = Instant::now() + Duration::from_secs(60);
                while stream.write_all(b"x").is_ok() {
                    assert!(Instant::now() < until, "it is listened to for a minute");
                    std::thread::sleep(Duration::from_millis(300));
                }
            });
        }
    });
}

#[test]
fn who_says_nothing_keeps_nobody_from_the_pages() {
    let cluster = Cluster::new(0);
    let address = cluster.http();
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let silent: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for _ in 0..20 {
        assert_eq!(get(address, health).0, "HTTP/1.1 200 OK");
    }
    drop(silent);
}

#[test]
fn who_has_no_token_and_stays_keeps_nobody_from_the_pages() {
    let cluster = Cluster::new(0);
    let address = cluster.http();
    let strangers: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            let ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(ask).unwrap();
            // It was answered, and does not go.
            stream.read_exact(&mut [0; 12]).unwrap();
            let metrics = format!(
                "GET /metrics?token={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
                cluster.token()
            );
            assert_eq!(get(address, &metrics).0, "HTTP/1.1 200 OK");
            stream
        })
        .collect();
    drop(strangers);
}

#[test]
fn pages_end_with_the_server() {
    let cluster = Cluster::new(0);
    let address = cluster.http();
    let mut silent = TcpStream::connect(address).unwrap();
    let ok = ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned());
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(get(address, health), ok);
    drop(cluster);
    // Not after its time: it is closed.
    silent.set_nonblocking(true).unwrap();
    let heard = silent.read(&mut [0]).map_err(|error| error.kind());
    assert!(
        matches!(heard, Ok(0) | Err(ErrorKind::ConnectionReset)),
        "{heard:?}"
    );
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn garbage_on_the_port_is_nobody() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    let port = (cluster.address().host.clone(), cluster.address().port);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 5000],
        b"TREADLE\n\xff\xff",
    ] {
        let mut stream = TcpStream::connect((port.0.as_str(), port.1)).unwrap();
        let _ = stream.write_all(garbage);
        is_well(&mut client, &format!("{}", garbage.len()));
    }
    let stranger = treadle_net::Options {
        secret: Some(treadle_security::secret::Secret::new([8; 32]).unwrap()),
        ..secret()
    };
    let refused = wait_long(|wait| Peer::connect(cluster.address(), &stranger, wait));
    assert!(refused.is_err());
}

#[test]
fn closing_tells_everybody_and_frees_the_port() {
    let cluster = Cluster::new(1);
    let mut client = cluster.client("c");
    is_well(&mut client, "a");
    let address: Address = cluster.address().clone();
    cluster.server.close();
    client.wait_for_end();
    assert!(cluster.server.wait(Some(Duration::from_secs(60))));
    cluster
        .swarm
        .wait_for("the worker is told", |seen| !seen.left.is_empty());
    let again = Cluster::with(0, |options| options.address = address.clone());
    assert_eq!(*again.address(), address);
    let swarm = Swarm::new(&address, &secret());
    let worker = swarm.add(Profile::named("w"));
    swarm.leave(worker, Cause::Exited(0), "");
}
