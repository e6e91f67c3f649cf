"""What a person looks at: pictures, charts, the report page and the explorer."""
