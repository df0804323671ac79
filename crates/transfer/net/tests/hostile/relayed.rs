//! Somebody between a client and a listener who passes everything on: a handshake that was dialled
//! to elsewhere opens nothing, and not a byte that follows one is ever read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::proxy::{Entry, Fate, Proxy};
use support::raw::{Raw, dial, hello, hello_to};
use support::{eventually, listener, never, secret, soon, with_secret, with_tls};
use treadle_net::wire::proto;
use treadle_net::{Address, ClusterId, NetError, Options, Peer};
use treadle_security::secret::Role as Side;

use super::{Scene, support, transfer};

/// Without the Unix socket of a listener, which a relay of another user has not.
fn sockets_only() -> Options {
    Options {
        shared_memory: false,
        ..Options::default()
    }
}

/// Why there is no connection; and no listener has one.
fn refused(address: &Address, options: &Options) -> String {
    let error = Peer::connect(address, &with_secret(options), &mut soon()).unwrap_err();
    assert!(matches!(error, NetError::Handshake { .. }), "{error}");
    error.to_string()
}

#[test]
fn who_dialled_a_relay_reaches_nobody() {
    for options in [sockets_only(), Options::default()] {
        let scene = Scene::new(&options);
        // The port of a listener that has ended, which somebody else has now.
        let relay = Proxy::new(Entry::new(), scene.address(), |_, _| Fate::default());
        let reason = refused(relay.address(), &options);
        let (stale, own) = (relay.address().port, scene.address().port);
        for part in [
            format!(":{stale} was dialled"),
            format!(":{own} was reached"),
        ] {
            assert!(reason.contains(&part), "{reason}");
        }
        assert!(reason.contains("--contact-address"), "{reason}");
        assert!(scene.listener.accept(&mut never()).is_err());
        scene.is_well();
    }
}

/// The same where a relay changes what the client says that it dialled.
#[test]
fn a_relay_that_lies_about_the_address_has_no_proof() {
    let scene = Scene::new(&sockets_only());
    // What the client says to the relay, and the relay to the listener.
    let lie = scene.hello(proto::Role::Control);
    let truth = proto::Hello {
        dialled: hello_to(&"127.0.0.1:1".parse().unwrap(), proto::Role::Control).dialled,
        ..lie.clone()
    };
    let told = Raw::open_with(dial(scene.address()), &lie, &truth, &secret(), Side::Client);
    let told = told.err().unwrap();
    assert!(told.contains("its secret is another one"), "{told}");
    assert!(scene.listener.accept(&mut never()).is_err());
    scene.is_well();
}

#[test]
fn where_it_is_said_a_port_may_be_forwarded() {
    for written in ["127.0.0.1", "localhost"] {
        let entry = Entry::new();
        let options = sockets_only();
        let known = entry.known(&options);
        let contact = Address {
            host: written.into(),
            ..known.contact[0].clone()
        };
        let known = Options {
            contact: vec!["gateway:7786".parse().unwrap(), contact.clone()],
            ..options.clone()
        };
        let listener = listener(&known);
        let relay = Proxy::new(entry, listener.address(), |_, _| Fate::default());
        let client = Peer::connect(&contact, &with_secret(&options), &mut soon()).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        // Stripes, too.
        transfer(&client, &server);
        transfer(&server, &client);
        assert!(relay.connections() > 1);
    }
}

#[test]
fn all_addresses_of_a_listener_are_its_own() {
    let options = Options {
        insecure: true,
        ..sockets_only()
    };
    let any = "0.0.0.0:0".parse().unwrap();
    let listener = treadle_net::Listener::bind(&any, &with_secret(&options)).unwrap();
    let port = listener.address().port;
    for host in [
        "127.0.0.1",
        "127.0.0.2",
        "localhost",
        "0.0.0.0",
        "::ffff:127.0.0.1",
    ] {
        let address = Address {
            host: host.into(),
            port,
            tls: false,
        };
        let client = Peer::connect(&address, &with_secret(&options), &mut soon()).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        transfer(&client, &server);
        transfer(&server, &client);
    }
}

/// The loopback interface of another machine is reached by who passes a connection on.
#[test]
fn the_same_address_of_another_machine_is_another_one() {
    let scene = Scene::new(&sockets_only());
    let mut hello = scene.hello(proto::Role::Control);
    hello
        .dialled
        .as_mut()
        .unwrap()
        .socket
        .as_mut()
        .unwrap()
        .loopback = b"another".to_vec();
    let refused = Raw::open(dial(scene.address()), &hello, &secret())
        .err()
        .unwrap();
    assert!(refused.contains("of another machine"), "{refused}");
    scene.is_well();
}

/// What is not said cannot be checked.
#[test]
fn who_does_not_say_what_it_dialled_is_refused() {
    let scene = Scene::new(&Options::default());
    let odd = |address: &str| proto::Dialled {
        socket: Some(proto::Socket {
            address: address.into(),
            written: "x".repeat(10_000),
            ..Default::default()
        }),
        unix: scene.hello(proto::Role::Control).nonce,
    };
    for dialled in [
        None,
        Some(odd("")),
        Some(odd("nonsense")),
        Some(odd("127.0.0.1:0")),
    ] {
        let hello = proto::Hello {
            dialled,
            ..hello(proto::Role::Control)
        };
        let refused = Raw::open(dial(scene.address()), &hello, &secret())
            .err()
            .unwrap();
        assert!(refused.contains("was dialled"), "{refused}");
        assert!(refused.len() < 1000, "{refused}");
    }
    scene.is_well();
}

/// A stripe of a pair is bound as its first connection is, and so is the one for descriptors.
#[test]
fn further_connections_of_a_pair_are_bound_too() {
    let scene = Scene::new(&Options::default());
    let (raw, victim) = scene.attack();
    let relay = Proxy::new(Entry::new(), scene.address(), |_, _| Fate::default());
    for role in [proto::Role::StripeToListener, proto::Role::StripeToClient] {
        let refused = raw.further(relay.address(), role, 1).err().unwrap();
        assert!(
            refused.contains("somebody passes the connection on"),
            "{refused}"
        );
    }
    // The same session at another listener of the same secret.
    let other = Scene::new(&Options::default());
    let refused = raw.further(other.address(), proto::Role::StripeToListener, 1);
    let refused = refused.err().unwrap();
    assert!(refused.contains("no such session"), "{refused}");
    assert!(victim.ended().is_none());
    scene.is_well();
}

/// What a listener would prove is no proof of a client.
#[test]
fn a_reflected_proof_opens_nothing() {
    let scene = Scene::new(&sockets_only());
    let hello = scene.hello(proto::Role::Control);
    let refused = Raw::open_with(
        dial(scene.address()),
        &hello,
        &hello,
        &secret(),
        Side::Server,
    );
    let refused = refused.err().unwrap();
    assert!(refused.contains("its secret is another one"), "{refused}");
    scene.is_well();
}

#[test]
fn another_cluster_is_named() {
    let (own, other) = (ClusterId::random(), ClusterId::random());
    let of = |cluster| Options {
        cluster,
        ..Options::default()
    };
    for (member, wanted) in [(Some(own), other), (None, other)] {
        let scene = listener(&of(member));
        let reason = refused(scene.address(), &of(Some(wanted)));
        assert!(reason.contains("this is another cluster"), "{reason}");
        assert!(reason.contains(&other.to_string()), "{reason}");
        assert!(scene.accept(&mut never()).is_err());
    }
    let scene = listener(&of(Some(own)));
    for wanted in [None, Some(own)] {
        let client = Peer::connect(scene.address(), &with_secret(&of(wanted)), &mut soon());
        assert_eq!(client.unwrap().cluster(), Some(own));
        assert_eq!(scene.accept(&mut soon()).unwrap().cluster(), None);
    }
    // Of a worker, which learns later which one it is.
    let scene = listener(&of(None));
    scene.join(own);
    let client = Peer::connect(scene.address(), &with_secret(&of(Some(own))), &mut soon());
    assert_eq!(client.unwrap().cluster(), Some(own));
    let text = own.to_string();
    assert_eq!(text.parse::<ClusterId>().unwrap(), own);
    for text in ["", "x", &text[1..], "+0000000000000000000000000000000"] {
        text.parse::<ClusterId>().unwrap_err();
    }
    let malformed = proto::Hello {
        cluster: vec![1; 15],
        ..hello_to(scene.address(), proto::Role::Control)
    };
    let refused = Raw::open(dial(scene.address()), &malformed, &secret()).err();
    assert!(refused.unwrap().contains("16 bytes"));
}

/// With TLS nobody can change what they pass on, so ports may be forwarded.
#[test]
fn tls_is_bound_to_its_channel_instead() {
    let options = with_tls(&sockets_only());
    let secure = listener(&options);
    let passed = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&passed);
    let relay = Proxy::new(Entry::new(), secure.address(), move |_, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        Fate::default()
    });
    let client = Peer::connect(relay.address(), &with_secret(&options), &mut soon()).unwrap();
    let server = secure.accept(&mut soon()).unwrap();
    transfer(&client, &server);
    eventually("it was passed on", || passed.load(Ordering::Relaxed) > 0);
}
