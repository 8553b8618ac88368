//! schedule -> unsent commands, overdue operations.

fn main() -> anyhow::Result<()> {
    lambda::run::run::<lambda::sweep::Sweeper>()
}
