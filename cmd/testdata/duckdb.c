/* Runs SQL queries, one per argument, in DuckDB, and prints the rows with a bar between values. The prototypes are
 * those of duckdb.h, because the package has no headers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
	uint64_t opaque[32]; /* larger than any version's */
} result;

int duckdb_open(const char *path, void **database);
int duckdb_connect(void *database, void **connection);
int duckdb_query(void *connection, const char *sql, result *out);
uint64_t duckdb_column_count(result *r);
uint64_t duckdb_row_count(result *r);
char *duckdb_value_varchar(result *r, uint64_t column, uint64_t row);
const char *duckdb_result_error(result *r);
void duckdb_destroy_result(result *r);
void duckdb_free(void *p);

int main(int argc, char **argv) {
	void *database, *connection;
	int i;

	if (duckdb_open(NULL, &database) || duckdb_connect(database, &connection)) {
		fprintf(stderr, "DuckDB does not open\n");
		return 1;
	}
	for (i = 1; i < argc; i++) {
		result r;
		uint64_t row, column;

		if (duckdb_query(connection, argv[i], &r)) {
			fprintf(stderr, "%s: %s\n", argv[i], duckdb_result_error(&r));
			return 1;
		}
		for (row = 0; row < duckdb_row_count(&r); row++) {
			for (column = 0; column < duckdb_column_count(&r); column++) {
				char *value = duckdb_value_varchar(&r, column, row);
				printf("%s%s", column ? "|" : "", value ? value : "NULL");
				duckdb_free(value);
			}
			putchar('\n');
		}
		duckdb_destroy_result(&r);
	}
	return 0;
}
