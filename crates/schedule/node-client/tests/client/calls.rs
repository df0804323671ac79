//! Questions and answers.

use bytes::Bytes;
use treadle_messages::{Answer, Call, FromClient, ToClient};
use treadle_node_client::Event;

use crate::support::{next, start, watched};

#[test]
fn an_answer_carries_the_number_of_its_question() {
    let (mut scheduler, client) = start();
    let ask = |operation: &str| {
        let id = client.new_number();
        let call = Call {
            id,
            node: "worker".into(),
            operation: operation.into(),
            argument: Bytes::from_static(b"argument"),
        };
        client.call(call).unwrap();
        id
    };
    let ids = [ask("one"), ask("two")];
    let asked = [(); 2].map(|()| match scheduler.hear() {
        FromClient::Call(call) => call,
        other => panic!("{other:?}"),
    });
    assert_eq!(asked.each_ref().map(|call| call.id), ids);
    assert_eq!(
        (asked[1].node.as_str(), asked[1].operation.as_str()),
        ("worker", "two")
    );
    assert_eq!(asked[1].argument, "argument");
    let answers = [
        Answer {
            id: ids[1],
            result: Err(Bytes::from_static(b"error")),
        },
        Answer {
            id: ids[0],
            result: Ok(Bytes::from_static(b"result")),
        },
    ];
    scheduler.say(answers.clone().map(ToClient::Answer));
    for answer in answers {
        let Event::Answer(came) = next(&client) else {
            panic!("not an answer");
        };
        assert_eq!(came, answer);
    }
}

#[test]
fn a_client_is_asked_and_answers() {
    let (mut scheduler, client) = start();
    let call = Call {
        id: 9,
        node: "worker-1".into(),
        operation: "log".into(),
        argument: Bytes::from_static(b"argument"),
    };
    scheduler.say([ToClient::Call(call.clone()), ToClient::Restarted]);
    assert!(matches!(next(&client), Event::Call(came) if came == call));
    assert!(matches!(next(&client), Event::Restarted));
    let answer = Answer {
        id: 9,
        result: Ok(Bytes::new()),
    };
    client.answer(answer.clone()).unwrap();
    assert_eq!(scheduler.hear(), FromClient::Answer(answer));
}

#[test]
fn cancelling_and_retrying_name_what_is_known() {
    let (mut scheduler, client) = start();
    let id = watched(&mut scheduler, &client, "x");
    let keys = || [&b"x"[..], b"unknown"].into_iter();
    client
        .cancel(keys(), true, Bytes::from_static(b"why"))
        .unwrap();
    client.retry(keys()).unwrap();
    let cancel = FromClient::Cancel {
        ids: vec![id],
        force: true,
        reason: Bytes::from_static(b"why"),
    };
    assert_eq!(scheduler.hear(), cancel);
    assert_eq!(scheduler.hear(), FromClient::Retry(vec![id]));
}
