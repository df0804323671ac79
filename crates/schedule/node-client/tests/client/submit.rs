//! Keys and tasks.

use bytes::Bytes;
use treadle_messages::{Batch, Definition, FromClient, Standing, TaskOptions};
use treadle_node_client::{Contained, Content, Event, Input, NewTask};
use treadle_reactor::SPIN;
use treadle_types::ClientId;

use crate::support::{
    Scheduler, eventually, inline, next, next_finished, notice, soon, start, watched,
};

fn task<'a>(key: &'a str, inputs: &'a [Input]) -> NewTask<'a> {
    NewTask {
        key: key.as_bytes(),
        recipe: b"recipe",
        inputs,
        definitions: &[3],
        readers: 1,
        options: 0,
    }
}

fn batch(scheduler: &mut Scheduler) -> Batch {
    match scheduler.hear() {
        FromClient::Submit(batch) => batch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_is_one_message_and_its_notice_carries_the_value() {
    let (mut scheduler, client) = start();
    assert_eq!((client.id(), &client.info()[..]), (5, &b"info"[..]));
    let mut submission = client.submission();
    let options = submission.options(TaskOptions {
        retries: 2,
        ..TaskOptions::default()
    });
    let number = submission.add(
        &NewTask {
            options,
            ..task("x", &[])
        },
        Some("x's"),
    );
    assert_eq!(number, 0);
    let definition = || Definition {
        client: ClientId(0),
        number: 3,
        name: "inc".into(),
        pickle: Bytes::from_static(b"pickle"),
    };
    let garbage = client.finish(submission, || vec![definition()]);
    assert!(garbage.unwrap().is_empty());
    let FromClient::Define(sent) = scheduler.hear() else {
        panic!("the definition comes first");
    };
    assert_eq!(sent, definition());
    let batch = batch(&mut scheduler);
    let expected = Batch {
        number: batch.number,
        last: true,
        first: batch.first,
        keys: vec![Bytes::from_static(b"x")],
        tasks: vec![batch.first],
        offsets: vec![0, 0],
        inputs: vec![],
        readers: vec![1],
        ranks: vec![0],
        definition_offsets: vec![0, 1],
        definitions: vec![3],
        recipes: vec![Bytes::from_static(b"\x01xrecipe")],
        options: vec![0],
        option_sets: vec![TaskOptions {
            retries: 2,
            ..TaskOptions::default()
        }],
        wanted: vec![batch.first],
    };
    assert_eq!(batch, expected);
    assert!(client.value(b"x").is_none());
    scheduler.say([notice(batch.first, inline(b"value"))]);
    assert_eq!(next_finished(&client), "x's");
    assert_eq!(client.value(b"x").unwrap(), "value");
    assert!(client.value(b"y").is_none());
}

#[test]
fn batches_leave_before_the_submission_ends_and_name_each_key_once() {
    let (mut scheduler, client) = start();
    let known = watched(&mut scheduler, &client, "known");
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    assert_eq!(client.read(&mut submission, b"unknown"), None);
    let keys: Vec<String> = (0..5000).map(|number| format!("task-{number}")).collect();
    let mut sizes = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let inputs = match number {
            0 => vec![client.read(&mut submission, b"known").unwrap()],
            _ => vec![Input::Task(number as u32 - 1)],
        };
        let owner = (number == 4999).then_some("last");
        assert_eq!(submission.add(&task(key, &inputs), owner), number as u32);
        if submission.is_full() {
            client.flush(&mut submission, Vec::new).unwrap();
            let batch = batch(&mut scheduler);
            assert!(!batch.last);
            if sizes.is_empty() {
                assert_eq!(batch.inputs[0], known);
            }
            sizes.push(batch.tasks.len());
        }
    }
    // The first one leaves early.
    assert!(sizes[0] < sizes[1] / 3, "{sizes:?}");
    client.finish(submission, Vec::new).unwrap();
    let end = batch(&mut scheduler);
    assert!(end.last);
    assert_eq!(end.wanted, [*end.tasks.last().unwrap()]);
    // A chain: each reads the one before, across batches too.
    assert_eq!(end.inputs[0], end.tasks[0] - 1);
    assert_eq!(end.ranks[0] as usize, sizes.iter().sum::<usize>());
    assert_eq!(end.keys.len(), end.tasks.len());
    // What nobody has a future of is not kept.
    assert_eq!(client.key_count(), 2);
}

#[test]
fn a_known_key_keeps_its_id_and_gets_its_new_owner() {
    let (mut scheduler, client) = start();
    let known = watched(&mut scheduler, &client, "known");
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    submission.add(&task("new", &[]), None);
    submission.add(&task("known", &[Input::Task(0)]), Some("again"));
    assert_eq!(client.finish(submission, Vec::new).unwrap(), ["known"]);
    let batch = batch(&mut scheduler);
    assert_eq!(batch.keys, [Bytes::from_static(b"new")]);
    assert_eq!(batch.tasks, [batch.first, known]);
    assert_eq!(batch.wanted, [known]);
    assert_eq!(client.owner(b"known", |owner| *owner), Some("again"));
}

#[test]
fn options_are_sent_with_the_batches_where_they_occur() {
    let (mut scheduler, client) = start();
    let mut submission = client.submission();
    let priorities: Vec<u32> = (0..3)
        .map(|priority| {
            submission.options(TaskOptions {
                priority,
                ..TaskOptions::default()
            })
        })
        .collect();
    let with = |key, options| NewTask {
        options,
        ..task(key, &[])
    };
    submission.add(&with("a", priorities[2]), None);
    submission.add(&with("b", priorities[0]), None);
    submission.add(&with("c", priorities[2]), Some("c"));
    client.flush(&mut submission, Vec::new).unwrap();
    submission.add(&with("d", priorities[1]), Some("d"));
    client.finish(submission, Vec::new).unwrap();
    let priorities = |batch: &Batch| -> Vec<i32> {
        let sets = &batch.option_sets;
        let options = batch.options.iter();
        options
            .map(|set| sets[usize::from(*set)].priority)
            .collect()
    };
    let first = batch(&mut scheduler);
    assert_eq!(priorities(&first), [2, 0, 2]);
    assert_eq!(first.option_sets.len(), 2);
    assert_eq!(priorities(&batch(&mut scheduler)), [1]);
}

#[test]
fn a_released_key_is_released_before_it_is_named_again() {
    let (mut scheduler, client) = start();
    let first = watched(&mut scheduler, &client, "x");
    assert_eq!(client.release(b"x"), Some("x"));
    assert_eq!(client.release(b"x"), None);
    client.watch(b"x", "again").unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![first]));
    let FromClient::Want { first: second, .. } = scheduler.hear() else {
        panic!("not a Want");
    };
    assert_ne!(first, second);
    // What comes of the old one is nobody's concern.
    scheduler.say([
        notice(first, inline(b"old")),
        notice(second, inline(b"new")),
    ]);
    assert_eq!(next_finished(&client), "again");
    assert_eq!(client.value(b"x").unwrap(), "new");
}

#[test]
fn an_announcement_is_what_was_released_or_no_message() {
    let (mut scheduler, client) = start();
    std::thread::sleep(SPIN);
    client.announce();
    eventually("an announcement", || scheduler.peer.has_next());
    assert!(scheduler.has_heard_nothing());
    assert!(!scheduler.peer.has_next());
    let id = watched(&mut scheduler, &client, "x");
    assert_eq!(client.release(b"x"), Some("x"));
    std::thread::sleep(SPIN);
    client.announce();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
}

#[test]
fn what_a_submission_reads_is_needed_until_it_is_over() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    let input = client.read(&mut submission, b"x").unwrap();
    assert_eq!(client.release(b"x"), Some("x"));
    submission.add(&task("y", &[input]), Some("y"));
    client.finish(submission, Vec::new).unwrap();
    assert_eq!(batch(&mut scheduler).inputs, [id]);
    client.process().unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
}

#[test]
fn a_new_owner_is_told_how_a_key_stands() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let mut submission = client.submission();
    assert!(client.read_coming(&mut submission, b"x").is_some());
    assert_eq!(client.read_coming(&mut submission, b"y"), None);
    scheduler.say([notice(id, inline(b"value"))]);
    assert_eq!(next_finished(&client), "x");
    assert_eq!(client.watch(b"x", "second").unwrap(), Some("x"));
    assert_eq!(next_finished(&client), "second");
    assert!(scheduler.has_heard_nothing());
    // Only the scheduler knows why there is no value.
    scheduler.say([notice(id, Standing::Cancelled(Bytes::new()))]);
    assert!(matches!(next(&client), Event::Standing { .. }));
    assert_eq!(client.read_coming(&mut submission, b"x"), None);
    client.abandon(submission).unwrap();
    assert_eq!(client.watch(b"x", "third").unwrap(), Some("second"));
    let FromClient::Want { first: again, .. } = scheduler.hear() else {
        panic!("not a Want");
    };
    assert_ne!(again, id);
    scheduler.say([notice(again, inline(b"anew"))]);
    assert_eq!(next_finished(&client), "third");
    assert_eq!(client.release(b"x"), Some("third"));
    client.process().unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![again, id]));
}

#[test]
fn many_released_keys_are_one_message() {
    let (mut scheduler, client) = start();
    let keys = ["a", "b", "c", "d"];
    let ids = keys.map(|key| watched(&mut scheduler, &client, key));
    for key in keys {
        client.release(key.as_bytes());
    }
    assert!(scheduler.has_heard_nothing());
    client.process().unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(ids.to_vec()));
}

#[test]
fn standings_of_all_kinds_reach_the_owner() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    scheduler.say([
        notice(id, inline(b"value")),
        notice(id, Standing::Pending),
        notice(id, Standing::Unknown),
        notice(id, Standing::Cancelled(Bytes::from_static(b"why"))),
    ]);
    assert_eq!(next_finished(&client), "x");
    let names = ["Pending", "Unknown", "Cancelled"].map(|name| {
        let Event::Standing { change, .. } = next(&client) else {
            panic!("not a standing");
        };
        (name, format!("{change:?}"))
    });
    for (name, change) in names {
        assert!(change.starts_with(name), "{change}");
    }
    assert!(client.value(b"x").is_none());
}

#[test]
fn a_constant_is_put_before_its_readers_and_released_after_the_last() {
    let (mut scheduler, client) = start();
    let content = || Content {
        nbytes: 100,
        class: Bytes::new(),
        value: Contained::Inline(Bytes::from_static(b"constant")),
    };
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    let constant = client
        .constant(&mut submission, b"content", content(), |_, _, _| true)
        .unwrap();
    submission.add(&task("x", &[constant]), Some("x"));
    client.flush(&mut submission, Vec::new).unwrap();
    let FromClient::Put { id, key, .. } = scheduler.hear() else {
        panic!("not a Put");
    };
    assert_eq!(
        (key, Input::Known(id)),
        (Bytes::from_static(b"content"), constant)
    );
    assert_eq!(batch(&mut scheduler).inputs, [id]);
    scheduler.say([notice(id, inline(b"constant"))]);
    // Another submission that needs it sends it no second time.
    let mut other = client.submission();
    other.options(TaskOptions::default());
    eventually("the notice was taken", || {
        client.process().unwrap();
        client.value(b"content").is_some()
    });
    assert_eq!(
        client
            .constant(&mut other, b"content", content(), |_, _, _| true)
            .unwrap(),
        constant
    );
    submission.add(&task("y", &[constant]), Some("y"));
    client.finish(submission, Vec::new).unwrap();
    assert!(batch(&mut scheduler).last);
    other.add(&task("z", &[constant]), Some("z"));
    client.finish(other, Vec::new).unwrap();
    assert!(batch(&mut scheduler).last);
    client.process().unwrap();
    assert_eq!(scheduler.hear(), FromClient::Release(vec![id]));
}

#[test]
fn an_abandoned_submission_is_ended_if_some_of_it_was_sent() {
    let (mut scheduler, client) = start();
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    submission.add(&task("never", &[]), Some("never"));
    assert_eq!(client.abandon(submission).unwrap(), ["never"]);
    let mut submission = client.submission();
    submission.options(TaskOptions::default());
    submission.add(&task("sent", &[]), Some("sent"));
    client.flush(&mut submission, Vec::new).unwrap();
    submission.add(&task("not sent", &[]), Some("not sent"));
    assert_eq!(client.abandon(submission).unwrap(), ["not sent"]);
    let first = batch(&mut scheduler);
    assert_eq!(first.keys, [Bytes::from_static(b"sent")]);
    let last = batch(&mut scheduler);
    assert!(last.last && last.tasks.is_empty() && last.number == first.number);
}

#[test]
fn who_sends_more_than_is_read_waits_and_takes_what_comes_meanwhile() {
    // More than the sockets of any system hold together with what may wait in the process.
    const MESSAGES: usize = 4_000;
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let recipe = vec![0u8; 30_000];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut submission = client.submission();
            submission.options(TaskOptions::default());
            for number in 0..MESSAGES {
                client.wait_for_room(&mut soon()).unwrap();
                let key = format!("task-{number}");
                let new = NewTask {
                    recipe: &recipe,
                    ..task(&key, &[])
                };
                submission.add(&new, None);
                client.flush(&mut submission, Vec::new).unwrap();
            }
        });
        eventually("there is no room", || !client.has_room());
        scheduler.say([notice(id, inline(b"value"))]);
        eventually("what came was taken", || client.value(b"x").is_some());
        assert!(!sender.is_finished(), "there is no limit");
        for _ in 0..MESSAGES {
            batch(&mut scheduler);
        }
        sender.join().unwrap();
    });
    assert_eq!(next_finished(&client), "x");
}
