//! A server of several masters.

use std::time::Duration;

use treadle_shuffle::{
    ApplicationId, AttemptId, Config, ConnectionId, FromServer, Generation, Group, GroupId, LinkId,
    Plan, Refusal, Server, ServerEffect, ServerEvent, ServerId, ShuffleId, Tenant, ToMaster,
    ToNode, ToServer, Transfer,
};
use treadle_types::Runs;

use crate::server::{is_acked, refused};
use crate::support::{C, Holder, answer, batch};

const A: LinkId = LinkId(11);
const B: LinkId = LinkId(22);
const LEASE: Duration = Duration::from_secs(10);

/// What the server is called by a master, and a shuffle of that.
fn me(link: LinkId) -> ServerId {
    ServerId {
        node: 5,
        incarnation: link.0 as u32,
    }
}

fn shuffle(link: LinkId) -> ShuffleId {
    ShuffleId(link.0 << 32)
}

fn plan(link: LinkId) -> Plan {
    let id = GroupId {
        epoch: Generation(1),
        server: me(link),
    };
    Plan {
        shuffle: shuffle(link),
        generation: Generation(1),
        opened: Generation(1),
        is_final: false,
        tenant: Tenant {
            application: ApplicationId(link.0),
            priority: 1,
        },
        maps: 3,
        partitions: 4,
        groups: vec![Group::new(id, Runs::range(0, 4))],
    }
}

fn of(link: LinkId, attempt: u64) -> Transfer {
    Transfer {
        shuffle: shuffle(link),
        map: 0,
        attempt: AttemptId(attempt),
    }
}

fn governed(holder: &mut Holder, link: LinkId, application: u64) -> Vec<ServerEffect> {
    holder.event(ServerEvent::Governed {
        link,
        me: me(link),
        application: Some(ApplicationId(application)),
    })
}

fn says(holder: &mut Holder, link: LinkId, message: ToNode) -> Vec<ServerEffect> {
    holder.event(ServerEvent::Master { link, message })
}

fn push(holder: &mut Holder, link: LinkId, attempt: u64) -> Option<FromServer> {
    let group = plan(link).groups[0].id;
    holder.push(batch(of(link, attempt), group, 0, &[(1, 3)]))
}

fn is_dismissed(effects: &[ServerEffect], of: LinkId) -> bool {
    let mut effects = effects.iter();
    effects.any(|effect| matches!(effect, ServerEffect::Dismiss { link, .. } if *link == of))
}

/// A server of two masters, with a batch of each.
fn shared() -> Holder {
    let config = Config {
        lease: LEASE,
        ..Config::default()
    };
    let mut holder = Holder::new(0, config.clone());
    holder.server = Server::of_any(config);
    for link in [A, B] {
        assert_eq!(governed(&mut holder, link, link.0), []);
        says(&mut holder, link, ToNode::Plan(plan(link).into()));
        assert!(is_acked(push(&mut holder, link, 1)));
    }
    holder
}

#[test]
fn the_end_of_a_master_ends_its_shuffles_and_no_others() {
    let mut holder = shared();
    let all = holder.server.resident();
    holder.event(ServerEvent::Ungoverned(A));
    assert_eq!(holder.server.resident(), all / 2);
    assert_eq!(holder.store.len(), 1);
    let gone = push(&mut holder, A, 2);
    assert!(matches!(refused(gone), Some(Refusal::Stranger(_))));
    assert!(is_acked(push(&mut holder, B, 2)));
    // It comes back, as another one.
    assert_eq!(governed(&mut holder, A, A.0), []);
    holder.event(ServerEvent::Ungoverned(A));
    holder.event(ServerEvent::Ungoverned(B));
    assert!(holder.server.is_empty() && holder.store.is_empty());
}

#[test]
fn a_master_that_says_nothing_for_a_lease_is_gone() {
    let mut holder = shared();
    holder.now = Duration::from_secs(6);
    assert_eq!(holder.event(ServerEvent::Heard(B)), []);
    holder.now = holder.server.next_deadline().expect("there is a lease");
    assert_eq!(holder.now, LEASE);
    let effects = holder.event(ServerEvent::Tick);
    assert!(is_dismissed(&effects, A) && !is_dismissed(&effects, B));
    assert_eq!(holder.store.len(), 1);
    assert!(is_acked(push(&mut holder, B, 2)));
    // What it says when it goes on comes too late.
    assert_eq!(says(&mut holder, A, ToNode::Plan(plan(A).into())), []);
    assert_eq!(holder.server.governor(shuffle(A)), None);
}

#[test]
fn a_server_that_was_stopped_itself_gives_all_masters_a_whole_lease() {
    let mut holder = shared();
    holder.now = 10 * LEASE;
    let effects = holder.event(ServerEvent::Tick);
    assert!(!is_dismissed(&effects, A) && !is_dismissed(&effects, B));
    assert_eq!(holder.server.next_deadline(), Some(11 * LEASE));
}

#[test]
fn what_a_master_says_about_the_shuffle_of_another_changes_nothing() {
    let mut holder = shared();
    let mut other = plan(A);
    other.generation = Generation(9);
    other.groups.clear();
    assert_eq!(says(&mut holder, B, ToNode::Plan(other.into())), []);
    assert_eq!(says(&mut holder, B, ToNode::Close(shuffle(A))), []);
    assert_eq!(holder.server.governor(shuffle(A)), Some((A, me(A))));
    assert!(is_acked(push(&mut holder, A, 2)));
    says(&mut holder, A, ToNode::Close(shuffle(A)));
    assert_eq!(holder.server.governor(shuffle(A)), None);
}

#[test]
fn an_application_has_one_master_at_a_time() {
    let mut holder = shared();
    let next = LinkId(33);
    assert!(is_dismissed(&governed(&mut holder, next, A.0), next));
    assert_eq!(says(&mut holder, next, ToNode::Plan(plan(next).into())), []);
    assert_eq!(holder.server.governor(shuffle(next)), None);
    holder.event(ServerEvent::Ungoverned(next));
    assert!(is_acked(push(&mut holder, A, 2)));
    holder.event(ServerEvent::Ungoverned(A));
    assert_eq!(governed(&mut holder, next, A.0), []);
}

#[test]
fn two_masters_that_call_a_server_the_same_are_told() {
    let mut holder = shared();
    let link = LinkId(33);
    let effects = holder.event(ServerEvent::Governed {
        link,
        me: me(A),
        application: None,
    });
    assert!(is_dismissed(&effects, link));
    assert_eq!(holder.server.governor(shuffle(A)), Some((A, me(A))));
}

#[test]
fn the_master_that_is_meant_is_asked_for_a_plan_and_its_end_is_an_answer() {
    let mut holder = shared();
    let unknown = Transfer {
        shuffle: ShuffleId(1),
        ..of(B, 1)
    };
    let (push, _) = batch(unknown, plan(B).groups[0].id, 0, &[(1, 3)]);
    let effects = holder.message(ToServer::Push(push));
    let asked = ServerEffect::Report {
        link: B,
        message: ToMaster::Join(ShuffleId(1)),
    };
    assert_eq!(effects, [asked]);
    let effects = holder.event(ServerEvent::Ungoverned(B));
    assert_eq!(refused(answer(&effects)), Some(Refusal::Unknown));
}

/// The memory of a server is one, however many masters it has.
#[test]
fn applications_of_different_masters_share_the_limit() {
    let mut holder = shared();
    let used = holder.server.resident();
    let length = batch(of(A, 2), plan(A).groups[0].id, 0, &[(1, 3)]).0.length;
    let limit = used + length;
    holder.event(ServerEvent::Budget {
        target: limit,
        limit,
    });
    let offer = |holder: &mut Holder, from: u64, link: LinkId| {
        let (push, _) = batch(of(link, 2), plan(link).groups[0].id, 0, &[(1, 3)]);
        let from = ConnectionId(from);
        let message = ToServer::Push(push);
        let effects = holder.event(ServerEvent::Message { from, message });
        effects.contains(&ServerEffect::Admit { from, push })
    };
    // A tenth is for second copies.
    let admitted = [offer(&mut holder, C.0, A), offer(&mut holder, 2, B)];
    assert!(admitted.iter().filter(|admitted| **admitted).count() <= 1);
    let waiting = holder.server.waiting();
    assert!(waiting >= 1, "{waiting}");
    // What one has is room for the other when it is gone.
    let effects = holder.event(ServerEvent::Ungoverned(A));
    let is_of_b = |effect: &ServerEffect| matches!(effect, ServerEffect::Admit { push, .. } if push.shuffle == shuffle(B));
    assert!(effects.iter().any(is_of_b), "{effects:?}");
}
