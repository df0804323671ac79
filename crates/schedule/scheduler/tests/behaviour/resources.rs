//! Restrictions and resources.

use std::time::Duration;

use treadle_scheduler::{Event, State, Stuck};
use treadle_types::{Report, Symbol, WorkerId};

use crate::cluster::*;

const GPU: u32 = 500;

fn with_gpus(worker: u32, threads: u32, gpus: f64) -> treadle_scheduler::WorkerProfile {
    let mut profile = profile(worker, threads);
    profile.resources = vec![(Symbol(GPU), gpus)];
    profile
}

#[test]
fn a_task_runs_only_where_it_may() {
    let mut cluster = Cluster::new(4, 1);
    let by_name = cluster.submit(vec![reads(&[]).on(&[2]); 3]);
    let by_host = cluster.submit(vec![reads(&[]).on(&[1003]); 3]);
    cluster.run();
    for id in by_name {
        assert_eq!(cluster.assigned(id), [WorkerId(2)]);
    }
    for id in by_host {
        assert_eq!(cluster.assigned(id), [WorkerId(3)]);
    }
}

#[test]
fn a_task_waits_for_a_worker_that_it_may_run_at() {
    let mut cluster = Cluster::new(1, 1);
    let task = cluster.one(reads(&[]).on(&[7]));
    assert_eq!(cluster.state(task), State::Ready);
    cluster.tick_after(Duration::from_secs(31));
    assert_eq!(cluster.stuck, [(vec![task], Stuck::Restrictions)]);
    let mut profile = profile(1, 1);
    profile.aliases = vec![Symbol(7)];
    cluster.join(1, profile);
    assert_eq!(cluster.worker_of(task), WorkerId(1));
}

#[test]
fn others_will_do_where_that_is_allowed() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.one(reads(&[]).on(&[7]).or_others());
    assert_eq!(cluster.state(task), State::Assigned);
    let named = cluster.one(reads(&[]).on(&[1]).or_others());
    assert_eq!(cluster.worker_of(named), WorkerId(1));
    // The only one with the name goes.
    let waiting = cluster.submit(vec![reads(&[]).on(&[1]).or_others(); 20]);
    cluster.lose(1);
    cluster.run();
    for id in waiting {
        assert_eq!(cluster.state(id), State::Memory);
    }
}

#[test]
fn resources_are_used_from_assignment_to_the_end() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_gpus(0, 4, 2.0));
    let ids = cluster.submit(vec![reads(&[]).uses(GPU, 1.0); 4]);
    let sent = |cluster: &Cluster| {
        let sent = ids
            .iter()
            .filter(|&&id| cluster.state(id) == State::Assigned);
        sent.count()
    };
    assert_eq!(sent(&cluster), 2);
    cluster.start_all();
    let running = cluster.nodes[&WorkerId(0)].running[0].object.task;
    cluster.end(running);
    cluster.deliver();
    assert_eq!(sent(&cluster), 2);
    cluster.run();
    let worker = cluster.scheduler.worker(WorkerId(0)).expect("it");
    assert!(worker.used_resources().all(|(_, used)| used == 0.0));
}

#[test]
fn a_cancelled_task_uses_its_resources_until_it_has_stopped() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_gpus(0, 4, 1.0));
    let first = cluster.one(reads(&[]).uses(GPU, 1.0));
    let second = cluster.one(reads(&[]).uses(GPU, 1.0));
    cluster.start_all();
    cluster.unwant(&[first]);
    assert_eq!(cluster.state(second), State::Ready);
    cluster.end(first);
    cluster.deliver();
    assert_eq!(cluster.state(second), State::Assigned);
}

#[test]
fn fractions_of_a_resource_add_up() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_gpus(0, 20, 1.0));
    let ids = cluster.submit(vec![reads(&[]).uses(GPU, 0.1); 12]);
    let sent = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Assigned);
    assert_eq!(sent.count(), 10);
}

#[test]
fn what_no_worker_has_is_named() {
    let mut cluster = Cluster::new(2, 1);
    let task = cluster.one(reads(&[]).uses(GPU, 1.0));
    cluster.tick_after(Duration::from_secs(31));
    assert_eq!(cluster.stuck, [(vec![task], Stuck::Resources)]);
    cluster.join(9, with_gpus(9, 1, 1.0));
    cluster.run();
    assert_eq!(cluster.assigned(task), [WorkerId(9)]);
}

#[test]
fn tasks_without_needs_pass_those_that_wait_for_resources() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_gpus(0, 2, 1.0));
    cluster.submit(vec![reads(&[]).uses(GPU, 1.0); 3]);
    let plain = cluster.one(reads(&[]));
    assert_eq!(cluster.state(plain), State::Assigned);
}

#[test]
fn a_seceded_task_frees_its_slot() {
    let mut cluster = Cluster::new(1, 1);
    cluster.duration = Duration::from_secs(1);
    let known = cluster.one(reads(&[]));
    cluster.run();
    cluster.unwant(&[known]);
    let parent = cluster.one(reads(&[]));
    let child = cluster.one(reads(&[]));
    cluster.start_all();
    assert_eq!(cluster.state(child), State::Ready);
    let object = cluster.scheduler.task(parent).expect("it").object();
    cluster.report(0, Report::Seceded(object));
    assert_eq!(cluster.state(child), State::Assigned);
    cluster.report(0, Report::Rejoined(object));
    let worker = cluster.scheduler.worker(WorkerId(0)).expect("it");
    assert_eq!(worker.seceded(), 0);
    cluster.run();
    assert_eq!(cluster.state(parent), State::Memory);
}

#[test]
fn a_seceded_task_is_cancelled() {
    let mut cluster = Cluster::new(1, 1);
    let parent = cluster.one(reads(&[]));
    cluster.start_all();
    let object = cluster.scheduler.task(parent).expect("it").object();
    cluster.report(0, Report::Seceded(object));
    cluster.unwant(&[parent]);
    cluster.report(0, Report::Rejoined(object));
    cluster.run();
    cluster.assert_empty();
}

#[test]
fn actors_stay_where_they_are() {
    let mut cluster = Cluster::new(3, 2);
    let actor = cluster.one(reads(&[]).actor());
    cluster.size(actor, 10);
    cluster.run();
    let home = cluster.holders(actor)[0];
    let calls = cluster.submit(vec![reads(&[actor]); 20]);
    cluster.event(Event::Replicate {
        tasks: vec![actor],
        copies: 3,
        among: vec![],
    });
    cluster.run();
    for id in calls {
        assert_eq!(cluster.assigned(id), [home]);
    }
    assert_eq!(cluster.holders(actor), [home]);
    cluster.lose(home.0);
    assert_eq!(cluster.state(actor), State::Failed);
}

#[test]
fn many_constraints_come_and_go() {
    let mut cluster = Cluster::new(10, 1);
    for round in 0..3 {
        let specs = (0..10).map(|i| reads(&[]).on(&[(i + round) % 10]));
        let ids = cluster.submit(specs.collect());
        cluster.run();
        cluster.unwant(&ids);
        cluster.assert_empty();
    }
}

#[test]
fn what_needs_resources_is_taken_back_for_a_worker_that_has_them() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, with_gpus(0, 1, 4.0));
    let ids = cluster.submit(vec![reads(&[]).uses(GPU, 1.0); 3]);
    cluster.start_all();
    assert!(ids.iter().all(|&id| cluster.worker_of(id) == WorkerId(0)));
    // It has two slots, and resources for one task.
    cluster.join(1, with_gpus(1, 2, 1.5));
    let retracting = ids
        .iter()
        .filter(|&&id| cluster.state(id) == State::Retracting);
    assert_eq!(retracting.count(), 1);
    cluster.deliver();
    let there = ids
        .iter()
        .filter(|&&id| cluster.worker_of(id) == WorkerId(1));
    assert_eq!(there.count(), 1);
    cluster.tick_after(Duration::from_millis(100));
    cluster.deliver();
    let retracts = cluster.count(|c| matches!(c, treadle_types::Command::Retract(_)));
    assert_eq!(retracts, 1);
    cluster.run();
    assert!(ids.iter().all(|&id| cluster.state(id) == State::Memory));
}

#[test]
fn what_is_taken_back_comes_to_a_worker_whose_own_queue_waits_for_resources() {
    let mut cluster = Cluster::new(0, 0);
    cluster.join(0, profile(0, 1));
    cluster.join(1, with_gpus(1, 2, 1.0));
    let near = cluster.one(reads(&[]).on(&[0]));
    let far = cluster.one(reads(&[]).on(&[1]));
    cluster.size(near, 1000);
    cluster.size(far, 1 << 30);
    cluster.run();
    let uses = reads(&[far]).uses(GPU, 1.0);
    let first = cluster.one(uses.clone());
    let queued = cluster.one(uses);
    let blocker = cluster.one(reads(&[]).on(&[1]));
    let endless = cluster.one(reads(&[]).on(&[0]));
    let extra = cluster.one(reads(&[near]));
    cluster.start_all();
    assert_eq!(cluster.worker_of(first), WorkerId(1));
    assert_eq!(cluster.state(queued), State::Ready);
    assert_eq!(cluster.worker_of(endless), WorkerId(0));
    assert_eq!(cluster.worker_of(extra), WorkerId(0));
    cluster.end(blocker);
    cluster.deliver();
    cluster.tick_after(Duration::from_millis(100));
    cluster.deliver();
    assert_eq!(cluster.worker_of(extra), WorkerId(1));
    assert_eq!(cluster.state(queued), State::Ready);
    cluster.run();
}

#[test]
fn a_worker_can_have_other_resources_from_now_on() {
    let mut cluster = Cluster::new(1, 4);
    let first = cluster.one(reads(&[]).uses(GPU, 1.0));
    assert_eq!(cluster.state(first), State::Ready);
    let offer = |cluster: &mut Cluster, gpus: f64| {
        let worker = WorkerId(0);
        let resources = vec![(Symbol(GPU), gpus)];
        cluster.event(Event::Offer { worker, resources });
    };
    offer(&mut cluster, 2.0);
    assert_eq!(cluster.state(first), State::Assigned);
    let second = cluster.one(reads(&[]).uses(GPU, 1.0));
    assert_eq!(cluster.state(second), State::Assigned);
    // They go on, and nobody else begins before there is enough again.
    offer(&mut cluster, 1.0);
    let third = cluster.one(reads(&[]).uses(GPU, 1.0));
    cluster.start_all();
    cluster.end(first);
    cluster.deliver();
    assert_eq!(cluster.state(third), State::Ready);
    cluster.end(second);
    cluster.deliver();
    assert_eq!(cluster.state(third), State::Assigned);
    offer(&mut cluster, 0.0);
    cluster.run();
    assert_eq!(cluster.state(third), State::Memory);
    let last = cluster.one(reads(&[]).uses(GPU, 1.0));
    assert_eq!(cluster.state(last), State::Ready);
}
