//! What the simulation does not show: limits, and how often entries are written.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::entry::{Entry, Load};

fn entry(name: &str, incarnation: u64) -> Entry {
    Entry {
        name: name.to_owned(),
        incarnation,
        address: "treadle://h:1".to_owned(),
        load: Some(Load::default()),
        ..Entry::default()
    }
}

/// A watch with a current, empty list.
fn watching(config: Config) -> Watching {
    let mut watching = Watching::new(config, 1);
    let listed = WatchingEvent::Listed {
        entries: Vec::new(),
        unreadable: Vec::new(),
    };
    for event in [WatchingEvent::Tick, WatchingEvent::Connected, listed] {
        tell(&mut watching, event);
    }
    watching
}

fn tell(watching: &mut Watching, event: WatchingEvent) -> Vec<News> {
    let mut effects = Vec::new();
    watching.handle(event, Duration::ZERO, &mut effects);
    watching.check().unwrap();
    let news = effects.into_iter().filter_map(|effect| match effect {
        WatchingEffect::Tell(news) => Some(news),
        _ => None,
    });
    news.collect()
}

#[test]
fn servers_beyond_the_limit_are_skipped_and_named() {
    let most = 3;
    let mut watching = watching(Config {
        most,
        ..Config::default()
    });
    for number in 0..5 {
        let put = WatchingEvent::Put(Arc::new(entry(&number.to_string(), 1)));
        let news = tell(&mut watching, put);
        let is_skipped = matches!(&news[..], [News::Skipped { .. }]);
        assert_eq!(is_skipped, number >= most, "{news:?}");
    }
    // Those that are listed change still.
    let put = WatchingEvent::Put(Arc::new(Entry {
        weight: 7,
        ..entry("1", 1)
    }));
    assert!(matches!(&tell(&mut watching, put)[..], [News::Updated(_)]));
    assert_eq!(watching.list(Duration::ZERO).entries.len(), most);
}

#[test]
fn of_many_lives_of_one_name_the_latest_is_listed() {
    let mut watching = watching(Config {
        flaps: u32::MAX,
        ..Config::default()
    });
    for incarnation in 1..=100 {
        tell(
            &mut watching,
            WatchingEvent::Put(Arc::new(entry("a", incarnation))),
        );
    }
    // One that is earlier than all that are kept.
    tell(&mut watching, WatchingEvent::Put(Arc::new(entry("a", 1))));
    assert_eq!(watching.list(Duration::ZERO).entries[0].incarnation, 100);
}

#[test]
fn nodes_that_are_none_are_named_once_and_again_when_they_come_back() {
    let mut watching = watching(Config::default());
    let unreadable = || WatchingEvent::Unreadable {
        node: "x".to_owned(),
        why: "it is damaged".to_owned(),
    };
    assert_eq!(tell(&mut watching, unreadable()).len(), 1);
    assert_eq!(tell(&mut watching, unreadable()).len(), 0);
    tell(&mut watching, WatchingEvent::Interrupted("cut".to_owned()));
    tell(&mut watching, WatchingEvent::Resumed);
    let listed = WatchingEvent::Listed {
        entries: Vec::new(),
        unreadable: Vec::new(),
    };
    tell(&mut watching, listed);
    assert_eq!(tell(&mut watching, unreadable()).len(), 1);
}

#[test]
fn an_entry_is_written_no_more_often_than_it_may_be() {
    use RegisteringEvent as Event;
    let config = Config::default();
    let mut registering = Registering::new(entry("a", 1), config.clone(), 1);
    let mut writes = Vec::new();
    let mut handle = |event, now| {
        let mut effects = Vec::new();
        registering.handle(event, now, &mut effects);
        registering.check().unwrap();
        // Each is answered at once.
        while let Some(effect) = effects.pop() {
            let answer = match effect {
                RegisteringEffect::Connect => Event::Connected,
                RegisteringEffect::ReadRivals => Event::Rivals(vec![Rival {
                    incarnation: 1,
                    address: "treadle://h:1".to_owned(),
                }]),
                RegisteringEffect::Write(entry) => {
                    writes.push((now, entry.load));
                    Event::Written
                }
                _ => continue,
            };
            registering.handle(answer, now, &mut effects);
        }
        registering.deadline()
    };
    let step = Duration::from_millis(10);
    let load = |held, waiting| Load {
        held,
        waiting,
        ..Load::default()
    };
    let mut now = Duration::ZERO;
    handle(Event::Tick, now);
    // Requests come and go: each change is large.
    for number in 0..1_000 {
        now += step;
        handle(Event::Refresh(load(0, 1_000 * (number % 2))), now);
        handle(Event::Tick, now);
    }
    // A little more is held: that has time until the next look at others with the name.
    handle(Event::Refresh(load(1, 0)), now);
    let mut deadline = handle(Event::Tick, now);
    while let Some(at) = deadline.filter(|at| *at <= now + 2 * config.longest_refresh) {
        deadline = handle(Event::Tick, at);
        if at > now + 2 * config.longest_refresh - step {
            break;
        }
    }
    let pauses = writes.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(pauses.min() >= Some(config.shortest_refresh), "{writes:?}");
    assert!((8..=13).contains(&writes.len()), "{writes:?}");
    assert_eq!(writes.last().and_then(|last| last.1), Some(load(1, 0)));
}
