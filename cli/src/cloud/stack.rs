//! CloudFormation stacks: made, brought up to date, removed; each waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aws_sdk_cloudformation::Client;
use aws_sdk_cloudformation::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_cloudformation::types::{Capability, Parameter, Stack};
use indicatif::ProgressBar;

/// Between two looks at a stack that is changing.
const LOOK: Duration = Duration::from_secs(1);
/// Longest that a stack of queues may take.
const LONGEST: Duration = Duration::from_secs(600);

/// A stack's outputs; `None` if there is no such stack.
pub(crate) async fn outputs(
    client: &Client,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>> {
    let Some(stack) = describe(client, name).await? else {
        return Ok(None);
    };
    let outputs = stack.outputs.unwrap_or_default();
    let outputs = outputs
        .into_iter()
        .filter_map(|output| Some((output.output_key?, output.output_value?)));
    Ok(Some(outputs.collect()))
}

async fn describe(client: &Client, name: &str) -> Result<Option<Stack>> {
    let described = client.describe_stacks().stack_name(name).send().await;
    match described {
        Ok(described) => Ok(described.stacks.unwrap_or_default().into_iter().next()),
        // CloudFormation has no code of its own for this.
        Err(error)
            if error
                .message()
                .is_some_and(|text| text.contains("does not exist")) =>
        {
            Ok(None)
        }
        Err(error) => Err(failed(&error)).with_context(|| format!("look at stack {name}")),
    }
}

/// Makes a stack, or brings it up to date, and waits. Its outputs.
pub(crate) async fn ensure(
    client: &Client,
    name: &str,
    template: &str,
    parameters: &[(&str, &str)],
) -> Result<BTreeMap<String, String>> {
    let parameters: Vec<_> = parameters
        .iter()
        .map(|(key, value)| {
            Parameter::builder()
                .parameter_key(*key)
                .parameter_value(*value)
                .build()
        })
        .collect();
    if describe(client, name).await?.is_none() {
        let create = client
            .create_stack()
            .stack_name(name)
            .template_body(template)
            .set_parameters(Some(parameters))
            .capabilities(Capability::CapabilityIam);
        let created = create.send().await.map_err(|error| failed(&error));
        created.with_context(|| format!("create stack {name}"))?;
    } else {
        let update = client
            .update_stack()
            .stack_name(name)
            .template_body(template)
            .set_parameters(Some(parameters))
            .capabilities(Capability::CapabilityIam);
        match update.send().await {
            Ok(_) => {}
            Err(error)
                if error
                    .message()
                    .is_some_and(|text| text.contains("No updates")) => {}
            Err(error) => {
                return Err(failed(&error)).with_context(|| format!("update stack {name}"));
            }
        }
    }
    wait(client, name).await?;
    outputs(client, name)
        .await?
        .context("the stack has gone again")
}

/// Removes a stack, and waits until it is gone.
pub(crate) async fn remove(client: &Client, name: &str) -> Result<()> {
    let deleted = client.delete_stack().stack_name(name).send().await;
    deleted
        .map_err(|error| failed(&error))
        .with_context(|| format!("delete stack {name}"))?;
    wait(client, name).await
}

/// Waits until a stack has settled; one that is gone has.
async fn wait(client: &Client, name: &str) -> Result<()> {
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(100));
    let begun = Instant::now();
    loop {
        let Some(stack) = describe(client, name).await? else {
            return Ok(());
        };
        let status = stack
            .stack_status
            .as_ref()
            .map_or("?", |status| status.as_str());
        progress.set_message(format!("stack {name}: {status}"));
        match status {
            "CREATE_COMPLETE" | "UPDATE_COMPLETE" | "DELETE_COMPLETE" => return Ok(()),
            status if status.ends_with("IN_PROGRESS") => {}
            status => {
                let reason = stack.stack_status_reason.unwrap_or_default();
                bail!(
                    "stack {name} is {status} {reason}; its events say which resource: aws cloudformation describe-stack-events --stack-name {name}"
                );
            }
        }
        if begun.elapsed() > LONGEST {
            bail!(
                "stack {name} is still {status} after {} s",
                LONGEST.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn failed(error: &(impl std::error::Error + Send + Sync + 'static)) -> anyhow::Error {
    anyhow::anyhow!("{}", DisplayErrorContext(error))
}
