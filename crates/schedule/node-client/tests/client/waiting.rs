//! Threads that wait, and event loops.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use treadle_messages::Standing;
use treadle_net::{NetError, Wait};
use treadle_node_client::{ClientError, Event, Lead};
use treadle_reactor::leader::is_busy;

use crate::support::{
    Scheduler, TestClient, eventually, inline, next_finished, notice, soon, start, watched, within,
};

pub(crate) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    let zero = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&zero)).unwrap() == 1
}

/// No thread counts as stuck, however slow the machine is.
fn start_patient() -> (Scheduler, TestClient) {
    let (scheduler, client) = start();
    (scheduler, client.with_grace(Duration::from_secs(3600)))
}

#[test]
fn the_descriptor_is_readable_while_there_is_something_to_process() {
    let (mut scheduler, client) = start_patient();
    let id = watched(&mut scheduler, &client, "x");
    eventually("it is quiet", || {
        client.process().unwrap();
        !is_readable(client.descriptor())
    });
    scheduler.say([notice(id, inline(b"1")), notice(id, Standing::Pending)]);
    eventually("it rings", || is_readable(client.descriptor()));
    let lead = client.process().unwrap();
    assert!(matches!(
        lead.next(|owner| *owner),
        Some(Event::Standing { owner: "x", .. })
    ));
    // One is left.
    drop(lead);
    assert!(is_readable(client.descriptor()));
    let lead = client.process().unwrap();
    assert!(lead.next(|owner| *owner).is_some());
    assert!(lead.next(|owner| *owner).is_none());
    drop(lead);
    assert!(!is_readable(client.descriptor()));
}

#[test]
fn an_event_loop_is_left_alone_while_a_thread_waits() {
    let (mut scheduler, client) = start_patient();
    let id = watched(&mut scheduler, &client, "x");
    client.process().unwrap();
    let waits = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rang = scope.spawn(|| {
            let lead = client.try_lead().unwrap();
            let mut looks = || {
                waits.store(true, Ordering::SeqCst);
                false
            };
            let mut wait = Wait {
                interrupted: Some(&mut looks),
                ..soon()
            };
            lead.receive(&mut wait).unwrap();
            is_readable(client.descriptor())
        });
        eventually("it waits", || waits.load(Ordering::SeqCst));
        // What comes from now on is its own.
        assert!(client.process().is_none());
        scheduler.say([notice(id, inline(b"1"))]);
        assert!(!rang.join().unwrap());
    });
    assert_eq!(next_finished(&client), "x");
}

/// The loop may have reset the descriptor after the thread had made it readable.
#[test]
fn an_event_loop_that_could_not_lead_is_called_afterwards() {
    let (mut scheduler, client) = start_patient();
    let id = watched(&mut scheduler, &client, "x");
    eventually("it is quiet", || {
        client.process().unwrap();
        !is_readable(client.descriptor())
    });
    let lead = client.try_lead().unwrap();
    scheduler.say([notice(id, inline(b"1"))]);
    eventually("it rings", || is_readable(client.descriptor()));
    let processes = || {
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(client.process().is_none()));
        });
        assert!(!is_readable(client.descriptor()));
    };
    processes();
    drop(lead);
    assert!(is_readable(client.descriptor()));
    let lead = client.process().unwrap();
    assert!(lead.next(|owner| *owner).is_some());
    // Nothing is left.
    processes();
    drop(lead);
    assert!(!is_readable(client.descriptor()));
}

#[test]
fn a_thread_that_waits_learns_that_another_has_processed_something() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiters = [(); 4].map(|()| {
            scope.spawn(|| {
                loop {
                    let seen = client.rounds();
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                    let Some(lead) = client.lead(seen, &mut soon()).unwrap() else {
                        continue;
                    };
                    lead.receive(&mut soon()).unwrap();
                    while let Some(event) = lead.next(|owner| *owner) {
                        assert!(matches!(event, Event::Standing { owner: "x", .. }));
                        done.store(true, Ordering::SeqCst);
                    }
                }
            })
        });
        // Whoever leads takes it; the others are told.
        scheduler.say([notice(id, inline(b"1"))]);
        eventually("it is processed", || done.load(Ordering::SeqCst));
        // A follower that was the first to lead after it has nothing to take: it is woken here.
        eventually("they return", || {
            client.wake();
            waiters
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished)
        });
    });
}

/// Has this thread lead, and be at the first of two notices of `x`.
fn at_the_first<'a>(
    scheduler: &mut Scheduler,
    client: &'a TestClient,
) -> (u32, Lead<'a, &'static str>) {
    let id = watched(scheduler, client, "x");
    scheduler.say([notice(id, inline(b"1")), notice(id, inline(b"2"))]);
    let lead = client.try_lead().unwrap();
    lead.receive(&mut soon()).unwrap();
    assert!(lead.next(|owner| *owner).is_some());
    (id, lead)
}

#[test]
fn a_thread_that_leads_may_lead_again() {
    let (mut scheduler, client) = start();
    let (_, outer) = at_the_first(&mut scheduler, &client);
    // What the application does with it waits for the next one.
    assert_eq!(next_finished(&client), "x");
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(client.try_lead().is_none()));
    });
    drop(outer);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(client.try_lead().is_some()));
    });
}

#[test]
fn waits_end_in_time_and_by_a_call() {
    let (_scheduler, client) = start_patient();
    let lead = client.try_lead().unwrap();
    let outcome = lead.receive(&mut within(Duration::from_millis(10)));
    assert!(
        matches!(outcome, Err(ClientError::Net(NetError::Timeout))),
        "{outcome:?}"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = client.lead(client.rounds(), &mut within(Duration::from_millis(10)));
            assert!(matches!(outcome, Err(NetError::Timeout)));
        });
    });
    std::thread::scope(|scope| {
        scope.spawn(|| client.wake());
        lead.receive(&mut soon()).unwrap();
    });
}

/// Takes the first of two things, and is at it until the other one, which is for another thread to take,
/// is processed there.
fn is_processed_elsewhere(about_to_wait: impl FnOnce(&TestClient)) {
    let (mut scheduler, client) = start();
    let (id, lead) = at_the_first(&mut scheduler, &client);
    about_to_wait(&client);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(next_finished(&client), "x"));
    });
    // This thread leads no more, and may lead again.
    assert!(lead.next(|owner| *owner).is_none());
    drop(lead);
    scheduler.say([notice(id, inline(b"3"))]);
    assert_eq!(next_finished(&client), "x");
}

#[test]
fn a_thread_that_is_stuck_leads_no_more() {
    is_processed_elsewhere(|_| ());
}

#[test]
fn a_thread_steps_aside() {
    is_processed_elsewhere(TestClient::step_aside);
}

#[test]
fn an_event_loop_takes_over_from_a_thread_that_is_stuck() {
    let (mut scheduler, client) = start();
    let (_, lead) = at_the_first(&mut scheduler, &client);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut taken = false;
            eventually("it rings, and the next thing is there", || {
                if is_readable(client.descriptor())
                    && let Some(lead) = client.process()
                {
                    taken |= lead.next(|owner| *owner).is_some();
                }
                taken
            });
        });
    });
    assert!(lead.next(|owner| *owner).is_none());
}

/// What is asked whether the wait is to end may wait itself.
#[test]
fn a_wait_may_be_interrupted_by_another() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let mut asked = false;
    let mut interrupted = || {
        assert!(!is_busy());
        if !std::mem::replace(&mut asked, true) {
            scheduler.say([notice(id, inline(b"1"))]);
            assert_eq!(next_finished(&client), "x");
            scheduler.say([notice(id, inline(b"2"))]);
        }
        false
    };
    let lead = client.try_lead().unwrap();
    lead.receive(&mut Wait {
        interrupted: Some(&mut interrupted),
        ..soon()
    })
    .unwrap();
    assert!(lead.next(|owner| *owner).is_some());
}
