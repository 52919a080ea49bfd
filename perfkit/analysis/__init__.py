"""Pure functions over Arrow tables: tables in, table out."""
