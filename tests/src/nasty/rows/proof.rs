//! That the trial notices: a sender expects the wrong things, and each time a case has to be WRONG.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::nasty::machine::Machine;
use crate::nasty::outage::Outage;
use crate::nasty::trial::{Trial, UNAUTHENTICATED};

/// One wrong expectation.
type Wrong = (&'static str, fn(&mut Trial<'_>));

const WRONG: &[Wrong] = &[
    ("an accepted webhook where a refusal is expected", |trial| {
        let request = trial.webhook().request();
        trial.refused("", &request, 202, "");
    }),
    ("another status", |trial| {
        let request = trial.webhook().request().without("webhook-signature");
        trial.refused("", &request, 403, UNAUTHENTICATED);
    }),
    ("another code", |trial| {
        let request = trial.webhook().request().without("webhook-signature");
        trial.refused("", &request, 401, "not-permitted");
    }),
    ("a refusal where acceptance is expected", |trial| {
        let request = trial
            .webhook()
            .request()
            .replacing("webhook-signature", "v1,AAAA");
        trial.accepted("", &request);
    }),
    (
        "an acceptance whose command never reached the queue",
        |trial| {
            let webhook = trial.webhook().body(r#"{"op":"release","key":"k"}"#);
            trial.accepted("", &webhook.request());
        },
    ),
    ("a first delivery where a replay is expected", |trial| {
        let request = trial.webhook().request();
        trial.replayed("", &request);
    }),
    ("a refusal that leaves a delivery", |trial| {
        trial.machine.backplane.set(Outage::QueueRefuses);
        let request = trial.webhook().request();
        trial.refused("", &request, 503, "queue-unavailable");
        trial.machine.backplane.set(Outage::None);
    }),
    ("a connection that is left open", |trial| {
        let request = trial.webhook().request().without("connection");
        trial.refused(
            "",
            &request.without("webhook-signature"),
            401,
            UNAUTHENTICATED,
        );
    }),
    ("two answers", |trial| {
        let first = trial
            .webhook()
            .request()
            .without("connection")
            .method("GET")
            .bytes();
        let bytes = [first, b"x\r\n\r\n".to_vec()].concat();
        trial.bare("", &bytes, 400);
    }),
    ("a second text for strangers", |trial| {
        let unsigned = trial.webhook().request().without("webhook-signature");
        let answer = trial.refused("", &unsigned, 401, UNAUTHENTICATED);
        let challenge = answer
            .as_ref()
            .and_then(|answer| answer.header("www-authenticate"));
        let challenge = challenge.unwrap_or_default().to_owned();
        trial.strangers.insert(challenge, "another text".to_owned());
        trial.verdicts.clear();
        trial.refused("", &unsigned, 401, UNAUTHENTICATED);
    }),
    ("a configuration that is taken", |trial| {
        trial.misconfigured("", "", "callback")
    }),
];

/// Tries them all.
pub(in crate::nasty) fn run() -> Result<()> {
    let mut missed = 0;
    for (name, expect_wrongly) in WRONG {
        let mut machine = Machine::start()?;
        let mut strangers = BTreeMap::new();
        let mut trial = Trial {
            machine: &mut machine,
            strangers: &mut strangers,
            verdicts: Vec::new(),
        };
        expect_wrongly(&mut trial);
        let noticed = trial
            .verdicts
            .iter()
            .any(|verdict| !verdict.faults.is_empty());
        missed += usize::from(!noticed);
        println!("{}  {name}", if noticed { "noticed" } else { "MISSED " });
    }
    println!("nasty: {} wrong expectations, {missed} missed", WRONG.len());
    ensure!(missed == 0, "wrong expectations were not noticed");
    Ok(())
}
