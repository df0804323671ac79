//! The control thread of a worker: it takes in and sends what no other thread does, and looks at memory.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use treadle_memory::Reclaim;
use treadle_net::{Lane, Wait};
use treadle_reactor::thread::lock;

use super::health;
use super::inner::Inner;
use super::parker::Parker;
use super::recording;

/// While executors are busy it takes in what the scheduler says, and sends what they leave, at most so
/// often: all of a burst at once.
const BURST: Duration = Duration::from_millis(1);
/// The same while they wait there themselves.
const LOOK_IDLE: Duration = health::LOOK;

/// Looks after a worker until it is over.
pub(super) fn control(worker: &Weak<Inner>, parker: &Parker) {
    let mut told = Instant::now();
    let mut has_begun = false;
    let mut looked = Instant::now();
    let mut looks = health::Looks::default();
    let mut watch = health::Watch::default();
    let mut reclaim = Reclaim::default();
    loop {
        let Some(inner) = worker.upgrade() else {
            return;
        };
        if inner.is_over() {
            return;
        }
        let (busy, alone) = {
            let runs = lock(&inner.runs);
            let alone = runs.threads == 0 && inner.embedder.get().is_some();
            (runs.idle == 0 && runs.threads > 0, alone)
        };
        let has_news = inner.has_news();
        if has_news {
            inner.drain(0);
        }
        if told.elapsed() > health::EVERY || inner.is_news.swap(false, Ordering::AcqRel) {
            // The first one asks for the time.
            if !has_begun || told.elapsed() > health::EVERY {
                has_begun = true;
                recording::send(&inner, false);
            }
            told = Instant::now();
            health::tell(&inner, &mut watch);
        }
        let look = if busy { looks.busy } else { looks.calm };
        if looked.elapsed() > look {
            looked = Instant::now();
            let missing = lock(&inner.runs).recruit_late();
            inner.spawn(missing);
            looks = health::look(&inner, &mut reclaim);
        }
        inner.flush();
        let lane = inner.control_lane.clone();
        if busy {
            let scheduler = inner.scheduler.clone();
            drop(inner);
            if parker.was_notified() || has_news {
                std::thread::sleep(BURST);
                continue;
            }
            // What comes from here on unparks it.
            let _waiting = scheduler.unpark_on_change();
            if !worker.upgrade().is_some_and(|inner| inner.has_news()) {
                // Memory is looked at in its time, however often something comes.
                parker.park_busy(looks.busy.saturating_sub(looked.elapsed()));
            }
            continue;
        }
        drop(inner);
        if alone {
            hear(worker, &lane, looks.calm);
        } else if parker.was_notified() {
            parker.rest(LOOK_IDLE);
        } else {
            // Until its memory is to be looked at; who begins something notifies it.
            parker.park(looks.calm);
        }
    }
}

/// Waits until the scheduler says something, at most so long, and while there is no executor that does.
fn hear(worker: &Weak<Inner>, lane: &Lane, most: Duration) {
    let mut done = || {
        worker.upgrade().is_none_or(|inner| {
            inner.is_over() || inner.has_news() || lock(&inner.runs).threads > 0
        })
    };
    // At its end things are looked at, whyever it ended.
    let _ = lane.wait(
        &mut done,
        &mut Wait {
            deadline: Some(Instant::now() + most),
            interrupted: None,
        },
    );
}
