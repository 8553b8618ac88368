//! What the template tells a function: names of its table, queues and secrets. All that is missing is
//! reported at once.

use backplane::aws::{Connection, QueueUrls, Roots, StaticKeys};

/// A function's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Prefix of the installation's names.
    pub prefix: String,
    /// The table.
    pub table: String,
    /// What every queue's URL begins with.
    pub queue_base: String,
    /// Where the delivery of callbacks is woken.
    pub callback_queue_url: String,
    /// Secrets that hold the configuration's files, merged in this order.
    pub secrets: Vec<String>,
    /// Roots that AWS is trusted by.
    pub roots: Roots,
}

/// What is wrong with the environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("environment: {}", faults.join("; "))]
pub struct EnvironmentError {
    /// One per variable.
    pub faults: Vec<String>,
}

impl Environment {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read() -> Result<Self, EnvironmentError> {
        Self::read_from(&|name| std::env::var(name).ok())
    }

    /// Reads a given environment.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read_from(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let mut faults = Vec::new();
        let mut require = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.unwrap_or_else(|| {
                faults.push(format!("{name} is not set"));
                String::new()
            })
        };
        let prefix = require("GPUHOOK_PREFIX");
        let table = require("GPUHOOK_TABLE");
        let queue_base = require("GPUHOOK_QUEUE_BASE");
        let callback_queue_url = require("GPUHOOK_CALLBACK_QUEUE_URL");
        let secrets = variable("GPUHOOK_SECRETS").unwrap_or_default();
        let secrets = secrets.split(',').map(str::trim);
        let secrets = secrets.filter(|id| !id.is_empty()).map(str::to_owned);
        let roots = match variable("GPUHOOK_ROOTS").as_deref() {
            None | Some("" | "amazon") => Roots::Amazon,
            Some("native") => Roots::Native,
            Some(_) => {
                faults.push("GPUHOOK_ROOTS must be amazon or native".to_owned());
                Roots::Amazon
            }
        };
        if faults.is_empty() {
            Ok(Self {
                prefix,
                table,
                queue_base,
                callback_queue_url,
                secrets: secrets.collect(),
                roots,
            })
        } else {
            Err(EnvironmentError { faults })
        }
    }

    /// How to reach AWS. Region and keys are the platform's: whatever it gives is right (Lambda's have a
    /// session token, emulators' have none).
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection {
            roots: self.roots,
            static_keys: StaticKeys::Allowed,
            ..Connection::default()
        }
    }

    /// Where the queues are.
    #[must_use]
    pub fn queues(&self) -> QueueUrls {
        QueueUrls::Installation {
            base: self.queue_base.clone(),
            prefix: self.prefix.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &str) -> Option<String> {
        let value = match name {
            "GPUHOOK_PREFIX" | "GPUHOOK_TABLE" => "gpuhook",
            "GPUHOOK_QUEUE_BASE" => "https://sqs.eu-west-1.amazonaws.com/1/",
            "GPUHOOK_CALLBACK_QUEUE_URL" => {
                "https://sqs.eu-west-1.amazonaws.com/1/gpuhook-callbacks"
            }
            "GPUHOOK_SECRETS" => "gpuhook/config, gpuhook/signing,",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn what_the_template_gives_is_read() {
        let read = Environment::read_from(&given).unwrap();
        assert_eq!(read.secrets, ["gpuhook/config", "gpuhook/signing"]);
        assert_eq!(read.roots, Roots::Amazon);
        let host = backplane::QueueName::Commands("t4".parse().unwrap());
        assert_eq!(
            read.queues().of(&host),
            "https://sqs.eu-west-1.amazonaws.com/1/gpuhook-cmd-t4.fifo"
        );
    }

    #[test]
    fn everything_that_is_missing_is_said_at_once() {
        let error =
            Environment::read_from(&|name| (name == "GPUHOOK_ROOTS").then(|| "mozilla".to_owned()));
        assert_eq!(
            error.unwrap_err().faults,
            [
                "GPUHOOK_PREFIX is not set",
                "GPUHOOK_TABLE is not set",
                "GPUHOOK_QUEUE_BASE is not set",
                "GPUHOOK_CALLBACK_QUEUE_URL is not set",
                "GPUHOOK_ROOTS must be amazon or native",
            ]
        );
    }
}
