//! What networks and processes do to a pair: connections that are cut, stall, slow down or change a
//! bit, processes that are killed. What arrives is what was sent, or both sides know why not.

#[path = "faults/processes.rs"]
mod processes;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use support::proxy::{Entry, Fate, Proxy, Way};
use support::raw::{end_of, hello_to, preamble, proof};
use support::{LONG, body, eventually, listener, soon, with_secret, with_tls};
use treadle_net::wire::proto;
use treadle_net::{Config, Listener, NetError, Options, PairEnd, Peer, Target};
use treadle_sim_kernel::Random;
use treadle_transfer::layout::EXTENT;

const MIB: usize = 1 << 20;

/// A pair with a network between its sides.
struct Net {
    proxy: Proxy,
    _listener: Listener,
    client: Peer,
    server: Peer,
}

fn bytes_only() -> Options {
    Options {
        shared_memory: false,
        ..Options::default()
    }
}

/// Two stripes.
fn two_stripes() -> Options {
    Options {
        pair: Config {
            stripes: Some(2),
            timeout: Duration::from_secs(10),
            ..Config::default()
        },
        ..bytes_only()
    }
}

impl Net {
    fn new(options: &Options, plan: impl Fn(usize, Way) -> Fate + Send + Sync + 'static) -> Self {
        Self::limited(options, None, plan)
    }

    fn limited(
        options: &Options,
        total: Option<u64>,
        plan: impl Fn(usize, Way) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let entry = Entry::limited(total);
        let listener = listener(&entry.known(options));
        let proxy = Proxy::new(entry, listener.address(), plan);
        let options = with_secret(options);
        let client = Peer::connect(proxy.address(), &options, &mut soon()).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        Self {
            proxy,
            _listener: listener,
            client,
            server,
        }
    }

    /// Who sends, and who receives.
    fn sides(&self, way: Way) -> (&Peer, &Peer) {
        match way {
            Way::ToListener => (&self.client, &self.server),
            Way::ToClient => (&self.server, &self.client),
        }
    }
}

fn receive(peer: &Peer) -> Result<Bytes, NetError> {
    let incoming = peer.next(&mut soon())?;
    incoming.accept(Vec::new())?;
    incoming.wait(&mut soon())?;
    Ok(incoming.take()?.frames.remove(0).into_bytes())
}

fn transfer(from: &Peer, to: &Peer, length: usize) {
    let data = body(length);
    let sending = from.send(1, std::slice::from_ref(&data)).unwrap();
    assert!(receive(to).unwrap() == data);
    sending.wait(&mut soon()).unwrap();
}

const WAYS: [Way; 2] = [Way::ToListener, Way::ToClient];

/// A stripe of the first pair: they are numbered from 1.
fn is_stripe(connection: usize) -> bool {
    connection > 0
}

#[test]
fn a_stripe_that_is_cut_is_replaced() {
    for way in WAYS {
        let fates: [fn(u64) -> Fate; 3] = [
            |at| Fate {
                cut: Some(at),
                ..Fate::default()
            },
            |at| Fate {
                cut_receiver: Some(at),
                ..Fate::default()
            },
            |at| Fate {
                cut_sender: Some(at),
                ..Fate::default()
            },
        ];
        for fate in fates {
            // In the middle of an extent, and between two.
            let net = Net::new(
                &two_stripes(),
                move |connection, towards| match connection {
                    1 if towards == way => fate(1_000_000),
                    2 if towards == way => fate(2 * EXTENT),
                    _ => Fate::default(),
                },
            );
            let (from, to) = net.sides(way);
            // One stripe may carry nearly all of an object: the other is cut with a later one.
            eventually("both were replaced", || {
                transfer(from, to, 8 * MIB + 5);
                from.stats().pair.replaced == 2
            });
            transfer(to, from, MIB);
        }
    }
}

#[test]
fn stripes_that_are_cut_again_and_again_get_everything_through() {
    for way in WAYS {
        let net = Net::new(&two_stripes(), move |connection, towards| Fate {
            cut: (is_stripe(connection) && towards == way)
                .then_some(EXTENT + 400_000 * (connection as u64 % 5)),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        transfer(from, to, 12 * MIB);
        assert!(from.stats().pair.replaced > 3);
    }
}

#[test]
fn stripes_that_are_cut_while_they_open_are_tried_again() {
    for way in WAYS {
        for cut_towards in WAYS {
            let net = Net::new(&two_stripes(), move |connection, towards| Fate {
                // In the preamble, in the hello, in the proof.
                cut: match connection {
                    1 if towards == cut_towards => Some(10),
                    2 if towards == cut_towards => Some(60),
                    3 if towards == cut_towards => Some(110),
                    _ => None,
                },
                ..Fate::default()
            });
            let (from, to) = net.sides(way);
            transfer(from, to, 2 * MIB);
        }
    }
}

/// The bytes of a handshake that go towards the listener.
fn handshake(role: proto::Role) -> u64 {
    let control = role == proto::Role::Control;
    let hello = proto::Hello {
        session: u64::from(!control),
        credit: if control { Config::default().credit } else { 0 },
        release: env!("CARGO_PKG_VERSION").into(),
        // Proxies get a port of five digits, too.
        ..hello_to(&"127.0.0.1:55555".parse().unwrap(), role)
    };
    (preamble(&hello).len() + proof(&[0; 32]).len()) as u64
}

#[test]
fn a_flipped_bit_in_an_extent_is_found_and_sent_again() {
    let start = handshake(proto::Role::StripeToListener);
    let one_stripe = Options {
        pair: Config {
            stripes: Some(1),
            ..Config::default()
        },
        ..bytes_only()
    };
    let extent = 32 + EXTENT;
    // Object, offset and checksum in the header of the third extent, and its bytes.
    for at in [3, 10, 29, 32, 100_000, extent - 1] {
        let net = Net::new(&one_stripe, move |connection, towards| Fate {
            flip: (connection == 1 && towards == Way::ToListener)
                .then_some(start + 2 * extent + at),
            ..Fate::default()
        });
        transfer(&net.client, &net.server, 4 * MIB);
        let corrupt = net.server.stats().pair.corrupt;
        let replaced = net.client.stats().pair.replaced;
        assert_eq!((corrupt, replaced), (1, 1), "at {at}");
    }
}

#[test]
fn an_object_that_never_arrives_intact_fails_by_name() {
    let net = Net::new(&two_stripes(), move |connection, towards| Fate {
        flip: (is_stripe(connection) && towards == Way::ToListener).then_some(20_000),
        ..Fate::default()
    });
    let sending = net.client.send(1, &[body(MIB)]).unwrap();
    let error = sending.wait(&mut soon()).unwrap_err().to_string();
    assert!(error.contains("arrived damaged"), "{error}");
    assert!(net.client.ended().is_none());
    // The pair is not to blame.
    net.client.send(1, &[Bytes::from_static(b"small")]).unwrap();
    loop {
        match receive(&net.server) {
            Ok(bytes) => break assert_eq!(bytes, "small"),
            Err(NetError::Failed(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_flipped_bit_on_the_control_connection_ends_the_pair_by_name() {
    let start = handshake(proto::Role::Control);
    let net = Net::new(&bytes_only(), move |connection, towards| Fate {
        flip: (connection == 0 && towards == Way::ToListener).then_some(start + 1000),
        ..Fate::default()
    });
    net.client.send(1, &[body(50_000)]).unwrap();
    let error = receive(&net.server).unwrap_err().to_string();
    assert!(error.contains("checksum of a frame"), "{error}");
    assert_eq!(end_of(&net.client), PairEnd::Goodbye.to_string());
}

#[test]
fn a_control_connection_that_is_cut_ends_both_sides_by_name() {
    for way in WAYS {
        // Among small objects.
        let net = Net::new(&bytes_only(), move |connection, towards| Fate {
            cut: (connection == 0 && towards == way).then_some(100_000),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        let message = [1; 1000];
        let messages = (0..1000).map(|_| (1, message.as_slice()));
        let _ = from.send_many(messages, &mut soon());
        for side in [from, to] {
            let end = end_of(side);
            assert!(end.contains("the connection to the peer broke"), "{end}");
        }
        let received = std::iter::from_fn(|| receive(to).ok());
        assert!(received.count() < 100);
        let error = to.next(&mut soon()).unwrap_err();
        assert!(
            matches!(error, NetError::Ended(PairEnd::Lost(_))),
            "{error}"
        );

        // In the middle of a large one.
        let net = Net::new(&bytes_only(), |connection, _| Fate {
            // So slow that a busy machine does not matter, and several trials fit into the object.
            rate: is_stripe(connection).then_some(512 << 10),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        let sending = from.send(1, &[body(64 * MIB)]).unwrap();
        let incoming = to.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        eventually("it comes", || incoming.progress().0 > 0);
        net.proxy.cut(0);
        for error in [
            sending.wait(&mut soon()).unwrap_err(),
            incoming.wait(&mut soon()).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains("the connection to the peer broke"), "{text}");
        }
    }
}

#[test]
fn a_silent_network_is_an_error_within_the_timeout() {
    for way in WAYS {
        let options = Options {
            pair: Config {
                timeout: Duration::from_secs(1),
                ..Config::default()
            },
            ..bytes_only()
        };
        let net = Net::new(&options, move |connection, towards| Fate {
            stall: (connection == 0 && towards == way).then_some(1000),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        from.send(1, &[body(30_000)]).unwrap();
        let error = receive(to).unwrap_err().to_string();
        assert!(error.contains("silent for 1.0 s"), "{error}");
        // The other one hears of it.
        end_of(from);
    }
}

#[test]
fn a_stripe_that_stalls_is_replaced() {
    let options = Options {
        pair: Config {
            timeout: Duration::from_secs(4),
            ..two_stripes().pair
        },
        ..bytes_only()
    };
    for way in WAYS {
        // In its handshake, and in the middle of its bytes.
        for after in [10, MIB as u64] {
            let net = Net::new(&options, move |connection, towards| Fate {
                stall: (connection == 1 && towards == way).then_some(after),
                ..Fate::default()
            });
            let (from, to) = net.sides(way);
            transfer(from, to, 24 * MIB);
            eventually("it is given up", || net.proxy.connections() > 3);
        }
    }
}

#[test]
fn a_network_without_any_stripe_is_named() {
    for way in WAYS {
        let net = Net::new(&two_stripes(), move |connection, towards| Fate {
            cut: (is_stripe(connection) && towards == way).then_some(10_000),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        let sending = from.send(1, &[body(MIB)]).unwrap();
        let error = sending.wait(&mut soon()).unwrap_err().to_string();
        assert!(error.contains("no data connection"), "{error}");
        assert!(receive(to).is_err());
        end_of(to);
    }
}

/// With TLS, nothing that was changed or cut on its way is taken for the end of something.
#[test]
fn tls_survives_a_bad_network_too() {
    let options = with_tls(&two_stripes());
    for way in WAYS {
        let net = Net::new(&options, move |connection, towards| match connection {
            1 if towards == way => Fate {
                flip: Some(700_000),
                ..Fate::default()
            },
            2 if towards == way => Fate {
                cut: Some(900_000),
                ..Fate::default()
            },
            3 => Fate {
                cut: Some(1000),
                ..Fate::default()
            },
            _ => Fate::default(),
        });
        let (from, to) = net.sides(way);
        transfer(from, to, 8 * MIB);
        assert!(from.stats().pair.replaced > 0);

        let net = Net::new(&options, move |connection, towards| Fate {
            flip: (connection == 0 && towards == way).then_some(20_000),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        from.send(1, &[body(50_000)]).unwrap();
        let error = receive(to).unwrap_err().to_string();
        assert!(error.contains("changed on its way"), "{error}");
        end_of(from);
    }
}

#[test]
fn many_objects_survive_a_bad_network_in_both_directions() {
    for seed in 1..=4u64 {
        let plan = move |connection: usize, _| {
            let mut random = Random::new(seed << 32 | connection as u64);
            let after = 300_000 + random.below(1_500_000);
            let bad = is_stripe(connection) && connection < 30;
            let mut fate = Fate::default();
            match random.below(5) {
                _ if !bad => {}
                0 => fate.cut = Some(after),
                1 => fate.cut_receiver = Some(after),
                2 => fate.cut_sender = Some(after),
                3 => fate.flip = Some(after),
                _ => fate.delay = Duration::from_millis(1),
            }
            fate
        };
        let net = Net::new(&two_stripes(), plan);
        let objects: Vec<Bytes> = (0..16).map(|n| body(100_000 + n * 100_001)).collect();
        std::thread::scope(|scope| {
            for way in WAYS {
                let (from, to) = net.sides(way);
                let sent = objects.clone();
                scope.spawn(move || {
                    let sendings: Vec<_> = sent
                        .iter()
                        .map(|data| from.send(1, std::slice::from_ref(data)).unwrap())
                        .collect();
                    for sending in sendings {
                        sending.wait(&mut soon()).unwrap();
                    }
                });
                let objects = &objects;
                scope.spawn(move || {
                    for data in objects {
                        assert!(receive(to).unwrap() == *data, "seed {seed}");
                    }
                });
            }
        });
        assert!(net.proxy.connections() > 4, "seed {seed}: a good network");
    }
}

/// Says when it is dropped.
struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The application's memory is its own again when the owner is dropped, however the transfer ends.
#[test]
fn memory_that_was_given_back_is_not_written() {
    for cut in [false, true] {
        let net = Net::new(&bytes_only(), |connection, _| Fate {
            // So slow that it is not through when the sender changes its mind.
            rate: is_stripe(connection).then_some(256 << 10),
            ..Fate::default()
        });
        let sending = net.client.send(1, &[body(32 * MIB)]).unwrap();
        let incoming = net.server.next(&mut soon()).unwrap();
        let mut memory = vec![0u8; 32 * MIB];
        let given_back = Arc::new(AtomicBool::new(false));
        let owner = Box::new(Owner(Arc::clone(&given_back)));
        // SAFETY: the vector outlives the transfer, and is used when the owner was dropped.
        let target = unsafe { Target::new(memory.as_mut_ptr(), memory.len(), owner) };
        incoming.accept(vec![Some(target)]).unwrap();
        eventually("it comes", || incoming.progress().0 > 0);
        if cut {
            net.proxy.cut(0);
        } else {
            sending.cancel();
        }
        assert!(incoming.wait(&mut soon()).is_err());
        drop(incoming);
        eventually("it is given back", || given_back.load(Ordering::Acquire));
        memory.fill(9);
        std::thread::sleep(Duration::from_millis(300));
        assert!(memory.iter().all(|byte| *byte == 9));
    }
}

/// Where each socket is slow, more of them are used.
#[test]
fn more_stripes_are_opened_where_single_sockets_are_slow() {
    for way in WAYS {
        let net = Net::new(&bytes_only(), |connection, _| Fate {
            // So slow that a busy machine does not matter, and several trials fit into the object.
            rate: is_stripe(connection).then_some(4 << 20),
            ..Fate::default()
        });
        let (from, to) = net.sides(way);
        let data = body(40 * MIB);
        let start = Instant::now();
        let mut most = 0;
        // Noise on the processors can have a trial look as if it brought nothing.
        while most < 4 {
            assert!(start.elapsed() < LONG, "{most} stripes");
            let sending = from.send(1, std::slice::from_ref(&data)).unwrap();
            let incoming = to.next(&mut soon()).unwrap();
            incoming.accept(Vec::new()).unwrap();
            while !sending.is_done() {
                assert!(start.elapsed() < LONG, "it does not arrive");
                most = most.max(from.stats().pair.stripes);
                std::thread::sleep(Duration::from_millis(5));
            }
            incoming.wait(&mut soon()).unwrap();
            assert!(incoming.take().unwrap().frames[0].as_slice() == data);
        }
    }
}

/// Where the line is slow, an object arrives whole nevertheless, over however many stripes are tried
/// (which depends on rates: see `stripes.rs` of the transfer crate).
#[test]
fn a_slow_line_carries_everything() {
    let net = Net::limited(&bytes_only(), Some(60 << 20), |_, _| Fate::default());
    transfer(&net.client, &net.server, 60 * MIB);
}
