//! The load generator: every answer is counted once, whatever the sizes, threads and connections.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{soon, with_secret};
use treadle_net::load::{Load, Report, Served, drive, serve};
use treadle_net::{Listener, NetError, Options, PairEnd, Wait};

fn run(threads: usize, response_size: usize, load: &Load) -> (Report, Served) {
    let options = with_secret(&Options::default());
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(&mut || stop.load(Ordering::Relaxed)),
            };
            serve(&listener, threads, response_size, &mut wait)
        });
        let report = drive(listener.address(), &options, load, &mut soon());
        stop.store(true, Ordering::Relaxed);
        (report.unwrap(), served.join().unwrap().unwrap())
    })
}

#[test]
fn every_connection_gets_answers_of_the_right_size() {
    for (threads, channels, concurrency, message_size, response_size) in [
        (1, 1, 1, 0, 0),
        (1, 1, 1000, 1024, 1),
        (3, 5, 7, 100, 300_000),
        (2, 3, 2, 3_000_000, 64 * 1024),
        (2, 2, 200, 64 * 1024 - 1, 64 * 1024 - 1),
    ] {
        let mut load = Load {
            channels,
            concurrency,
            message_size,
            warmup: Duration::from_millis(50),
            duration: Duration::from_millis(500),
        };
        let (mut report, mut served) = run(threads, response_size, &load);
        // A busy machine may not get through one large message so soon.
        while report.total.requests == 0 && load.duration < Duration::from_secs(20) {
            load.duration *= 4;
            (report, served) = run(threads, response_size, &load);
        }
        let case = format!("{load:?}: {report:?}");
        assert_eq!(report.channels.len(), channels, "{case}");
        assert!(report.total.requests > 0, "{case}");
        for channel in &report.channels {
            assert_eq!(channel.latencies.count(), channel.requests, "{case}");
            let bytes = channel.requests * response_size as u64;
            assert_eq!(channel.response_bytes, bytes, "{case}");
        }
        let sum: u64 = report.channels.iter().map(|channel| channel.requests).sum();
        assert_eq!(report.total.requests, sum, "{case}");
        assert_eq!(served.connections, channels as u64, "{case}");
        assert!(served.requests >= sum, "{case}");
        assert_eq!(
            served.bytes,
            served.requests * message_size as u64,
            "{case}"
        );
    }
}

#[test]
fn a_server_that_goes_away_is_an_error() {
    let options = with_secret(&Options::default());
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let load = Load {
        channels: 1,
        concurrency: 4,
        message_size: 10,
        warmup: Duration::ZERO,
        duration: Duration::from_secs(60),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept(&mut soon()).unwrap()));
        let error = drive(listener.address(), &options, &load, &mut soon()).unwrap_err();
        assert!(
            matches!(error, NetError::Ended(PairEnd::Goodbye)),
            "{error}"
        );
    });
}

#[test]
fn an_interrupted_load_tells_what_it_counted_so_far() {
    let options = with_secret(&Options::default());
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let stop = AtomicBool::new(false);
    let load = Load {
        channels: 2,
        concurrency: 1,
        message_size: 10,
        warmup: Duration::ZERO,
        duration: Duration::from_secs(600),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(&mut || stop.load(Ordering::Relaxed)),
            };
            serve(&listener, 1, 10, &mut wait)
        });
        // A busy machine may answer nothing until then: the next one is interrupted later.
        let mut most = 20;
        let report = loop {
            let mut asked = 0;
            let mut wait = Wait {
                deadline: None,
                interrupted: Some(&mut || {
                    asked += 1;
                    asked > most
                }),
            };
            let report = drive(listener.address(), &options, &load, &mut wait);
            let is_early = match &report {
                Ok(report) => report.total.requests == 0,
                // It did not even connect.
                Err(error) => matches!(error, NetError::Interrupted),
            };
            if !is_early || most > 2_000 {
                break report;
            }
            most *= 4;
        };
        stop.store(true, Ordering::Relaxed);
        let report = report.unwrap();
        assert!(
            report.total.requests > 0 && report.elapsed < load.duration,
            "{report:?}"
        );
    });
}
