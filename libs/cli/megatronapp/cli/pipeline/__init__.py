"""`megatronapp simulate` and `megatronapp plan`: files and terminal around core/pipeline."""
