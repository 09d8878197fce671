//! `on_real_stores!` makes one test per function and real store (an SQLite file, a PostgreSQL server). The
//! functions take a store URL.

macro_rules! on_real_stores {
    ($($claim:ident),* $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    let folder = tempfile::tempdir().unwrap();
                    super::$claim(&format!("sqlite:{}", folder.path().join("tenure.db").display())).await;
                }
            )*
        }

        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    let tables = tenure::store::migration_sql("postgres:").unwrap();
                    let database = tenure_testkit::rig::prepared_database(&tables).unwrap();
                    super::$claim(database.url()).await;
                }
            )*
        }
    };
}
pub(crate) use on_real_stores;
