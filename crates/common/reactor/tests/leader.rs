//! One thread leads, the others follow: none is forgotten, whatever ends a wait.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Thread, current, park_timeout, scope};
use std::time::{Duration, Instant};

use treadle_reactor::leader::{Grace, Handover, Leadership};
use treadle_reactor::{Early, Wait};
use treadle_sim_kernel::Random;

const SOON: Duration = Duration::from_secs(30);
/// How often those look whom nothing but a call should wake.
const NEVER: Duration = Duration::from_secs(3600);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn within(time: Duration) -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + time),
        interrupted: None,
    }
}

/// Something that the leader brings for each thread: what a driver is for sockets.
struct World {
    leadership: Leadership,
    /// Threads whose thing has not been brought, with the flag that it was.
    wanted: Mutex<VecDeque<(Arc<AtomicBool>, Thread)>>,
    /// Threads that lead now.
    leading: AtomicUsize,
    turns: AtomicUsize,
}

impl World {
    fn new(grace: Option<Grace>) -> Self {
        let leadership = match grace {
            None => Leadership::new(Handover::Next),
            Some(grace) => Leadership::with_standby(Handover::Next, grace, || {}).unwrap(),
        };
        Self {
            leadership,
            wanted: Mutex::default(),
            leading: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
        }
    }

    /// One turn of the leader: something comes, for whoever has waited longest.
    fn turn(&self) {
        assert_eq!(self.leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
        // Some things take a while.
        if self.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            std::thread::sleep(Duration::from_micros(20));
        }
        let brought = lock(&self.wanted).pop_front();
        self.leading.fetch_sub(1, Ordering::SeqCst);
        if let Some((flag, thread)) = brought {
            flag.store(true, Ordering::SeqCst);
            thread.unpark();
        }
    }

    /// Waits as a driver does. `panics`: this thread panics when it leads.
    fn wait(&self, wait: &mut Wait<'_>, panics: bool) -> Result<(), Early> {
        let flag = Arc::new(AtomicBool::new(false));
        lock(&self.wanted).push_back((Arc::clone(&flag), current()));
        let mut done = || flag.load(Ordering::SeqCst);
        let Some(_leader) = self.leadership.lead(&mut done, wait)? else {
            return Ok(());
        };
        if panics {
            // Says nothing, unlike a panic that is a fault.
            resume_unwind(Box::new("on purpose"));
        }
        while !done() {
            wait.check()?;
            self.turn();
        }
        Ok(())
    }
}

#[test]
fn nobody_is_forgotten_whatever_ends_a_wait() {
    const THREADS: u64 = 12;
    const WAITS: u64 = 400;
    let graces = [
        None,
        Some((Duration::from_micros(200), false)),
        Some((Duration::from_micros(200), true)),
    ];
    for (seed, grace) in (1..).zip(graces) {
        let world = World::new(grace.map(|(period, is_stopped)| Grace { period, is_stopped }));
        let over = AtomicBool::new(false);
        let (late, interrupted, panicked) = Default::default();
        let counts: [&AtomicUsize; 3] = [&late, &interrupted, &panicked];
        let began = Instant::now();
        let work = |number: u64| {
            let mut random = Random::new(seed * 1_000 + number);
            for _ in 0..WAITS {
                let kind = random.below(16);
                let most = Duration::from_micros(random.below(4) * 100);
                let outcome = match kind {
                    0 => world.wait(&mut within(most), false),
                    1 => {
                        let mut asked = 0;
                        let limit = random.below(3);
                        let mut interrupt = || {
                            asked += 1;
                            asked > limit
                        };
                        let mut wait = Wait {
                            deadline: Some(Instant::now() + SOON),
                            interrupted: Some(&mut interrupt),
                        };
                        world.wait(&mut wait, false)
                    }
                    2 => {
                        let panics = || world.wait(&mut within(SOON), true);
                        match catch_unwind(AssertUnwindSafe(panics)) {
                            Ok(outcome) => outcome,
                            Err(_) => {
                                counts[2].fetch_add(1, Ordering::Relaxed);
                                Ok(())
                            }
                        }
                    }
                    3 => {
                        park_timeout(most);
                        Ok(())
                    }
                    _ => world.wait(&mut within(SOON), false),
                };
                match outcome {
                    Ok(()) => {}
                    Err(Early::Deadline) => {
                        assert_eq!(kind, 0, "somebody was forgotten");
                        counts[0].fetch_add(1, Ordering::Relaxed);
                    }
                    Err(Early::Interrupted) => {
                        counts[1].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        scope(|scope| {
            if grace.is_some() {
                scope.spawn(|| {
                    world.leadership.stand_by(&mut || {
                        world.turn();
                        std::thread::yield_now();
                        !over.load(Ordering::SeqCst)
                    });
                });
            }
            let work = &work;
            let threads: Vec<_> = (0..THREADS)
                .map(|number| scope.spawn(move || work(number)))
                .collect();
            let failed = threads.into_iter().any(|thread| thread.join().is_err());
            over.store(true, Ordering::SeqCst);
            world.leadership.call_standby();
            assert!(!failed, "a thread has failed with {grace:?}");
        });
        assert!(began.elapsed() < SOON);
        for (count, what) in counts.iter().zip(["late", "interrupted", "panicked"]) {
            assert!(count.load(Ordering::Relaxed) > 0, "nobody was {what}");
        }
        assert_eq!(world.leadership.leader(), None);
    }
}

#[test]
fn a_follower_leads_when_the_leader_stops_or_panics() {
    for panics in [false, true] {
        let leadership = Leadership::new(Handover::Next).with_look(NEVER);
        let followers = AtomicUsize::new(0);
        scope(|scope| {
            let leader = leadership.try_lead().unwrap();
            assert!(leadership.try_lead().is_none() && leadership.is_leader());
            let follower = scope.spawn(|| {
                let mut done = || {
                    followers.fetch_add(1, Ordering::SeqCst);
                    false
                };
                let led = leadership.lead(&mut done, &mut within(SOON));
                led.unwrap().is_some()
            });
            while followers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let stopped = catch_unwind(AssertUnwindSafe(|| {
                let _leader = leader;
                if panics {
                    resume_unwind(Box::new("on purpose"));
                }
            }));
            assert_eq!(stopped.is_err(), panics);
            // It was called: nothing else wakes it in time.
            assert!(follower.join().unwrap());
        });
    }
}

#[test]
fn all_followers_look_where_all_are_called() {
    let leadership = Leadership::new(Handover::All).with_look(NEVER);
    let rounds = AtomicUsize::new(0);
    let following = AtomicUsize::new(0);
    scope(|scope| {
        let leader = leadership.try_lead().unwrap();
        let follow = || {
            let mut is_first = true;
            let mut done = || {
                if std::mem::take(&mut is_first) {
                    following.fetch_add(1, Ordering::SeqCst);
                }
                rounds.load(Ordering::SeqCst) > 0
            };
            let led = leadership.lead(&mut done, &mut within(SOON * 2));
            assert!(led.unwrap().is_none());
        };
        let followers: Vec<_> = (0..4).map(|_| scope.spawn(follow)).collect();
        while following.load(Ordering::SeqCst) < followers.len() {
            std::thread::yield_now();
        }
        rounds.store(1, Ordering::SeqCst);
        let began = Instant::now();
        drop(leader);
        for follower in followers {
            follower.join().unwrap();
        }
        // Nothing but a call wakes them before their waits end, and then they look, too.
        assert!(began.elapsed() < SOON);
    });
}

#[test]
fn the_standby_thread_leads_after_the_grace_period_and_stops_for_others() {
    let grace = Grace {
        period: Duration::from_millis(20),
        is_stopped: true,
    };
    let interrupts = Arc::new(AtomicUsize::new(0));
    let interrupted = Arc::clone(&interrupts);
    let interrupt = move || {
        interrupted.fetch_add(1, Ordering::SeqCst);
    };
    let leadership = Leadership::with_standby(Handover::Next, grace, interrupt).unwrap();
    let turns = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    scope(|scope| {
        let until = Instant::now() + SOON;
        scope.spawn(|| {
            leadership.stand_by(&mut || {
                turns.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                !over.load(Ordering::SeqCst)
            });
        });
        for _ in 0..3 {
            let before = turns.load(Ordering::SeqCst);
            while turns.load(Ordering::SeqCst) < before + 3 {
                assert!(Instant::now() < until, "it does not lead");
                std::thread::yield_now();
            }
            let led = leadership.lead(&mut || false, &mut within(SOON));
            let leader = led.unwrap().unwrap();
            let during = turns.load(Ordering::SeqCst);
            std::thread::sleep(grace.period * 2);
            assert_eq!(turns.load(Ordering::SeqCst), during, "two lead");
            drop(leader);
        }
        assert!(interrupts.load(Ordering::SeqCst) > 0);
        over.store(true, Ordering::SeqCst);
        leadership.call_standby();
    });
}
